"""The calibrations are those that were fitted, and as true as the documentation says."""

import pytest
from benchmarks.hardware_accuracy import JUDGED, accuracy, fitted, goals, measured, points

from headway.core.hardware.kernels import Roofline
from headway.gpus import CALIBRATIONS, ROOFLINE_ERROR, TPOT_ERROR, kernels, trust


def test_every_gpu_is_as_true_as_it_claims_to_be():
    assert [goal.met for goal in goals(measured())] == [True, True]


@pytest.mark.parametrize("gpu", CALIBRATIONS)
def test_a_calibration_is_the_best_fit(gpu):
    best = fitted([each for each in points() if each.gpu == gpu])
    assert CALIBRATIONS[gpu].fixed_s == pytest.approx(best.fixed_s, rel=0.01)
    assert CALIBRATIONS[gpu].efficiency == pytest.approx(best.efficiency, rel=0.01)


@pytest.mark.parametrize("gpu", JUDGED)
def test_a_wrong_calibration_is_seen(gpu):
    own = [each for each in points() if each.gpu == gpu]
    slow = fitted(own).__class__(fixed_s=0.02, efficiency=1.0)
    assert accuracy(gpu, by="tables", found=own, calibration=slow).mean > 0.05


def test_a_gpu_without_a_table_has_its_specification():
    assert isinstance(kernels("l4"), Roofline)


@pytest.mark.parametrize("gpu", ["a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm"])
def test_tables_hold_what_was_measured(gpu):
    of = kernels(gpu)
    curve = of.linear(8192, 8192, "bfloat16")
    assert of.measured
    assert curve.sizes[0] == 1
    assert curve(4096) > curve(1024) > curve(16)


@pytest.mark.parametrize("gpu", TPOT_ERROR)
def test_what_is_said_of_a_gpu_is_what_was_measured(gpu):
    found = {each.gpu: each for each in measured() if each.kernels == "tables"}
    assert TPOT_ERROR[gpu] == pytest.approx(found[gpu].mean, abs=0.001)


def test_what_is_said_of_specifications_is_what_was_measured():
    found = [each.mean for each in measured() if each.kernels == "roofline"]
    assert max(found) == pytest.approx(ROOFLINE_ERROR, abs=0.005)
    assert {trust(gpu) for gpu in ("l4", "l40s")} == {trust("a10g")} != {trust("h100-sxm")}
