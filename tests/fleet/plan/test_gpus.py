"""The GPUs of a machine, as NVIDIA's bindings tell them."""

import pytest
from tests.testing.nvidia import GIB, Card, Nvml, Part

from headway.fleet.plan.gpus import found_gpus, visible

WHOLE = (Card("GPU-aa11"), Card("GPU-aa22"), Card("GPU-bb33"))
DIVIDED = (
    Card("GPU-aa11", parts=(Part("MIG-11"), None, Part("MIG-12"))),
    Card("GPU-aa22"),
    Card("GPU-bb33", parts=(Part("MIG-31"),)),
)


def numbers(devices):
    return [device.number for device in devices]


def test_gpus_are_what_the_driver_tells():
    library = Nvml(Card("GPU-aa11", used_gib=10), Card("GPU-aa22", name="NVIDIA L4", gib=23.0))
    devices, problem = found_gpus(library)
    assert not problem
    assert [(d.number, d.uuid, d.name, d.visible_as) for d in devices] == [
        (0, "GPU-aa11", "NVIDIA H100 80GB HBM3", "0"),
        (1, "GPU-aa22", "NVIDIA L4", "1"),
    ]
    assert devices[0].memory_bytes == pytest.approx(79.11 * GIB, rel=1e-4), "as CUDA has it"
    assert devices[0].free_bytes == pytest.approx(69.11 * GIB, rel=1e-4)
    assert library.open == 0


def test_mig_devices_stand_for_their_gpu_and_are_numbered_after_the_gpus():
    devices, problem = found_gpus(Nvml(*DIVIDED))
    assert not problem
    assert [(d.number, d.visible_as, d.parent) for d in devices] == [
        (1, "1", None),
        (3, "MIG-11", 0),
        (4, "MIG-12", 0),
        (5, "MIG-31", 2),
    ]
    assert devices[1].memory_bytes == round(39.5 * GIB)


def test_a_gpu_in_mig_mode_without_a_device_is_told():
    devices, problem = found_gpus(Nvml(Card("GPU-aa11", parts=()), Card("GPU-aa22")))
    assert numbers(devices) == [1]
    assert problem == "GPU 0 is in MIG mode and has no MIG device (nvidia-smi mig)"


def test_a_gpu_that_is_lost_leaves_the_others():
    devices, problem = found_gpus(Nvml(Card("GPU-aa11", lost=True), Card("GPU-aa22")))
    assert numbers(devices) == [1]
    assert problem == "GPU 0 can't be used: GPU is lost"


@pytest.mark.parametrize(
    ("card", "gib"), [(Card("GPU-a", old=True), 79.65), (Card("GPU-a", shared=True), 0.0)]
)
def test_memory_that_is_told_otherwise_or_not_at_all(card, gib):
    [device] = found_gpus(Nvml(card)).devices
    assert device.memory_bytes == round(gib * GIB)


def test_older_bindings_answer_in_bytes():
    [device] = found_gpus(Nvml(Card("GPU-a", name="NVIDIA L4"), in_bytes=True)).devices
    assert (device.uuid, device.name) == ("GPU-a", "NVIDIA L4")


def test_without_a_driver_there_are_no_gpus_and_it_is_said_why():
    devices, problem = found_gpus(Nvml(fails="NVML Shared Library Not Found"))
    assert devices == ()
    assert problem == "NVIDIA's driver doesn't answer: NVML Shared Library Not Found"


def test_without_the_library_there_are_no_gpus_and_it_is_said_why(monkeypatch):
    monkeypatch.setattr("headway.fleet.plan.gpus._LIBRARY", "not_installed_pynvml")
    assert found_gpus() == ((), "nvidia-ml-py isn't installed, so GPUs can't be seen")


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("GPU-bb33,GPU-aa11", [2, 0]),
        ("GPU-b", [2]),
        ("GPU-a,0", []),
        ("0,7,1", [0]),
        ("0,-1,1", [0]),
        ("1,1,2", [1]),
        ("NoDevFiles", []),
        ("٢", []),
    ],
)
def test_of_the_gpus_those_count_that_cuda_shows(words, seen):
    assert numbers(visible(found_gpus(Nvml(*WHOLE)).devices, words)) == seen


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (None, [1, 3, 4, 5]),
        ("MIG-12", [4]),
        ("MIG-12,MIG-31", [4, 5]),
        ("MIG-1", []),
        ("0", [3]),
        ("1,2", [1, 5]),
        ("3", []),
        ("GPU-aa22", [1]),
    ],
)
def test_mig_devices_are_chosen_by_their_uuids(words, seen):
    assert numbers(visible(found_gpus(Nvml(*DIVIDED)).devices, words)) == seen


def test_detection_without_a_driver_here(monkeypatch):
    pytest.importorskip("pynvml")
    devices, problem = found_gpus()
    assert devices or problem
