"""Two fleets of one machine don't take the same devices."""

import contextlib

import pytest

from headway import config
from headway.config import ConfigError
from headway.core.errors import SettingError
from headway.fleet import up
from headway.fleet.errors import FleetError
from headway.fleet.operate import claims
from headway.fleet.operate.control_socket import ask
from headway.fleet.operate.state_dir import Home
from headway.fleet.plan import plan
from headway.fleet.plan.spec import Machine


@pytest.fixture(autouse=True)
def _state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@contextlib.contextmanager
def running(name, devices, *, cpu=False):
    """A fleet that has its lock and these devices."""
    home = Home(name)
    with home.locked(print):
        home.make()
        claims.claim(home, devices, cpu=cpu)
        yield home


def test_what_one_fleet_has_another_is_told():
    with running("one", {0, 1}):
        assert claims.held("two", cpu=False) == {0: "one", 1: "one"}
        assert claims.held("one", cpu=False) == {}
        assert claims.held("two", cpu=True) == {}, "CPU cores have numbers of their own"
        with running("two", {2, 3}):
            assert claims.held("three", cpu=False) == dict.fromkeys((0, 1), "one") | dict.fromkeys(
                (2, 3), "two"
            )


def test_a_device_that_is_taken_can_not_be_claimed_and_what_one_had_stays():
    with running("one", {0, 1}), running("two", {2}) as two:
        with pytest.raises(FleetError, match="GPU 1 is used by the fleet one"):
            claims.claim(two, {1, 2}, cpu=False)
        assert claims.held("x", cpu=False) == {0: "one", 1: "one", 2: "two"}
        claims.claim(two, {3}, cpu=False)
        assert claims.held("one", cpu=False) == {3: "two"}


def test_a_fleet_that_has_ended_has_nothing():
    with running("one", {0}):
        pass
    assert claims.held("two", cpu=False) == {}
    with running("two", {0}):
        pass


@pytest.mark.parametrize("said", ["", "[]", "{", '{"cpu": false}', '{"devices": 3, "cpu": false}'])
def test_what_can_not_be_read_counts_as_nothing(said):
    with running("one", {0}) as one:
        one.devices_file.write_text(said)
        assert claims.held("two", cpu=False) == {}


def test_a_state_directory_that_can_not_be_written_is_one_line(tmp_path):
    with running("one", {0}) as one:
        one.devices_file.with_suffix(".new").mkdir()
        with pytest.raises(FleetError, match="XDG_STATE_HOME"):
            claims.claim(one, {1}, cpu=False)


def machine(count, *, cpu=False):
    devices = tuple(range(count))
    return Machine(
        cores=devices if cpu else (0,), gpus=() if cpu else devices, memory_gib=64.0, cpu=cpu
    )


@pytest.mark.parametrize("cpu", [True, False])
def test_the_second_fleet_gets_what_is_left(cpu):
    text = '[fleet]\nname = "two"\n[[pool]]\nname = "all"\nrole = "both"\n'
    parsed = config.parse(text, starts=True)
    with running("one", {0, 1}, cpu=cpu):
        beside = up.beside_others(machine(4, cpu=cpu), "two")
        [engine] = plan.plan(parsed, beside).engines
        assert engine.devices == ((2, 3) if cpu else (2,))
        [prefill, decode] = up.described(up.UpWish(name="two"), machine(4, cpu=cpu), print).engines
        assert {*prefill.devices, *decode.devices} == {2, 3}


def test_a_fleet_for_which_too_little_is_left_is_told_who_has_it():
    text = '[[pool]]\nname = "all"\nrole = "both"\nreplicas = 3'
    parsed = config.parse(text, starts=True)
    with running("one", {0, 1}):
        with pytest.raises(ConfigError, match=r"2 of 2 are left.*has 2 of them: one"):
            plan.plan(parsed, up.beside_others(machine(4), "default"))
        named = config.parse(text.replace("replicas = 3", "devices = [1, 2]"), starts=True)
        with pytest.raises(ConfigError, match="1 is used by the fleet one"):
            plan.plan(named, up.beside_others(machine(4), "default"))
        plan.plan(parsed, up.beside_others(machine(4), "one"))


def test_scaling_takes_what_no_other_fleet_has():
    parsed = config.parse('[[pool]]\nname = "all"\nrole = "both"', starts=True)
    hardware = machine(4)
    fleet = plan.plan(parsed, hardware)
    with running("one", {1, 2}):
        beside = up.beside_others(hardware, "default")
        scaled = plan.rescale(fleet, parsed, beside, "all", 2)
        assert [engine.devices for engine in scaled.engines] == [(0,), (3,)]
        with pytest.raises(SettingError, match=r"1 are free.*has 2 of them: one"):
            plan.rescale(fleet, parsed, beside, "all", 3)


def test_who_asks_for_a_fleet_that_does_not_run_hears_which_do():
    with pytest.raises(FleetError, match="no fleet default runs here; start it with headway up"):
        ask("default", {"do": "status"})
    said = pytest.raises(FleetError, match=r"what runs: one, two \(--name one\)")
    with running("one", {0}), running("two", {1}), said:
        ask("default", {"do": "status"})
