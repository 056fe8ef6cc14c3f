"""A file says how an engine misbehaves, from one step to the next."""

import json
import os

import pytest

from headway.emulate.faults import WELL, Fault, FaultFile


@pytest.fixture
def file(tmp_path):
    return tmp_path / "faults.json"


def write(file, text):
    """As a whole, with another time each time."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.utime(new, ns=(0, write.time_ns))
    write.time_ns += 1
    new.replace(file)


write.time_ns = 1


def test_without_a_file_all_is_well(file):
    assert FaultFile("").now() == FaultFile(str(file)).now() == WELL


def test_what_the_file_says_counts_until_it_says_otherwise(file):
    faults = FaultFile(str(file))
    for said, meant in [
        ({"slow": 5}, Fault(slow=5)),
        ({"hang": True}, Fault(hang=True)),
        ({"crash": True, "slow": 0.5}, Fault(slow=0.5, crash=True)),
        ({}, WELL),
    ]:
        write(file, json.dumps(said))
        assert faults.now() == faults.now() == meant
        assert bool(faults.told) == (meant != WELL)
    write(file, json.dumps({"slow": 5}))
    assert faults.now() == Fault(slow=5)
    file.unlink()
    assert faults.now() == WELL


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", "{", '{"slow": 0}', '{"slow": -1}', '{"slow": true}', '{"slow": "x"}'),
        *('{"hang": 1}', '{"crash": "yes"}', '{"other": 1}', '{"slow": NaN}', '{"slow": Infinity}'),
    ],
)
def test_what_can_not_be_meant_counts_for_nothing_and_is_told(file, text):
    faults = FaultFile(str(file))
    write(file, text)
    assert faults.now() == WELL
    assert str(file) in faults.told
    write(file, "{}")
    assert faults.now() == WELL
    assert not faults.told
