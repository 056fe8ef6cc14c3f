"""Where engines run is chosen by the fleet's placement."""

import dataclasses
import sys

import pytest

from headway import config
from headway.fleet.errors import FleetError
from headway.fleet.place import placement
from headway.fleet.place.local import Family, LocalEngine
from headway.fleet.place.placement import LocalPlacement, choose
from headway.fleet.plan import plan
from headway.fleet.plan.spec import Machine

MACHINE = Machine(cores=(0, 1), gpus=(), memory_gib=8.0, cpu=True)
TEXT = '[[pool]]\nname = "a"\nmodel = "m"\n'


@pytest.fixture
def fleet():
    return plan.plan(config.parse(TEXT, "h.toml", starts=True), MACHINE)


def test_a_place_here_keeps_its_address_until_it_is_let_go(fleet, tmp_path):
    chosen = choose(fleet, MACHINE, Family(), tmp_path, None)
    assert isinstance(chosen, LocalPlacement)
    one, other = chosen.place("a-0"), chosen.place("a-1")
    numbers = {n for p in (one, other) for n in (p.address.port, p.address.side_port)}
    assert len(numbers) == 4
    assert one.address.host == placement.HOST
    assert isinstance(one.engine(), LocalEngine)
    first = one.address
    one.release()
    again = chosen.place("a-2")
    assert again.address == first
    for place in (other, again):
        place.release()
    chosen.close()


def test_without_ray_it_is_said_what_to_install(fleet, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "headway.fleet.place.ray", raising=False)
    with pytest.raises(FleetError, match=r'pip install "headway\[ray\]" on every node'):
        choose(dataclasses.replace(fleet, placement="ray"), MACHINE, Family(), tmp_path, None)
