"""Which engines may start together."""

import pytest

from headway.fleet.place.start_order import may_start, memory_gib
from headway.fleet.plan.spec import EngineSpec, Machine


def engine(name, *devices, kv=None, model="m"):
    return EngineSpec(
        name=name, pool="p", role="both", model=model, devices=devices, kv_memory_gib=kv
    )


def machine(*, cpu, memory_gib=10.0):
    return Machine(cores=(0, 1), gpus=(0, 1), memory_gib=memory_gib, cpu=cpu)


@pytest.mark.parametrize(("memory", "may"), [(7.9, False), (8.0, True)])
def test_on_cpus_all_start_at_once_if_all_fit(memory, may):
    one, two = engine("a", 0, kv=2), engine("b", 1, kv=2)
    assert may_start(two, [one], [one, two], machine(cpu=True, memory_gib=memory)) is may


def test_on_gpus_those_that_share_a_device_start_one_after_the_other():
    one, other, shares = engine("a", 0, 1), engine("b", 2, 3), engine("c", 1, 2)
    every = [one, other, shares]
    assert may_start(other, [one], every, machine(cpu=False))
    assert not may_start(shares, [one], every, machine(cpu=False))
    assert not may_start(shares, [other], every, machine(cpu=False))


def test_one_alone_always_may():
    one = engine("a", 0, kv=1000)
    assert may_start(one, [], [one], machine(cpu=True))


def test_memory_is_what_is_asked_for_or_what_is_usual():
    assert memory_gib(engine("a", kv=1.5)) == 3.5
    assert memory_gib(engine("a", model=None)) == 4
    assert memory_gib(engine("a")) == 6
