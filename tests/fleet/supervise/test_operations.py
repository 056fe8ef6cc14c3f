"""What the supervisor's socket takes: whatever else is asked is refused in few words."""

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest

from headway import config as config_module
from headway.core.errors import HeadwayError
from headway.fleet.errors import FleetError
from headway.fleet.plan.spec import EngineSpec, FleetSpec
from headway.fleet.supervise.operations import Operations

WRONG = (
    {},
    {"do": None},
    {"do": "scale"},
    {"do": "scale", "pool": "a"},
    *(
        {"do": "scale", "pool": "a", "replicas": json.loads(text)}
        for text in ("true", "false", "1.0", "1e400", "-1e400", "NaN", '"2"', "null", "[2]", "{}")
    ),
    {"do": "scale", "pool": ["a"], "replicas": 1},
    {"do": "drain", "engine": 1},
    {"do": "undrain", "engine": None},
    {"do": "restart", "pool": True},
    {"do": "x" * 1_000_000},
    {"do": "drain", "engine": "x" * 1_000_000},
    {"do": "undrain", "engine": "\u0661\ud800"},
)


class Nobody:
    """A fleet's engines: none."""

    by_name: dict = {}  # noqa: RUF012  as Members has it


@pytest.mark.parametrize("request_", WRONG, ids=lambda request: repr(request)[:40])
def test_a_request_that_makes_no_sense_is_refused_in_few_words(request_):
    async def main():
        operations = Operations(None, None, Nobody(), None, None, None, None)
        with pytest.raises(HeadwayError) as caught:
            await operations.handle(request_)
        assert len(str(caught.value)) < 300
        assert operations.busy == ""

    asyncio.run(main())


class Placed:
    """Members that can be added and removed, of which `fails` can't."""

    def __init__(self, specs, fails=None):
        self.by_name = {spec.name: SimpleNamespace(spec=spec) for spec in specs}
        self.fails = fails

    def add(self, spec):
        if spec.name == self.fails:
            raise FleetError("no port is free")
        self.by_name[spec.name] = SimpleNamespace(spec=spec)
        return self.by_name[spec.name]

    def remove(self, member):
        del self.by_name[member.spec.name]


@pytest.mark.parametrize("fault", ["devices", "p-1", "p-2", "router file"])
def test_a_reload_that_can_not_be_written_down_leaves_all_as_it_was(fault):
    """Wherever the disk is full, or a port can't be had."""
    config = config_module.parse('[[pool]]\nname = "p"\n', starts=True)
    bigger = dataclasses.replace(config, router=dataclasses.replace(config.router, port=1))

    def spec(count, config):
        engines = [
            EngineSpec(name=f"p-{n}", pool="p", role="both", model=None, devices=(n,))
            for n in range(count)
        ]
        return FleetSpec(
            name="f",
            placement="local",
            start_timeout_s=1,
            hang_s=1,
            drain_s=1,
            engines=tuple(engines),
            config=config,
        )

    def full(_):
        raise FleetError("the state directory can't be used: No space left on device")

    before, said = spec(1, config), []
    members = Placed(before.engines, fault)
    running = dict(members.by_name)
    claimed = []
    plans = SimpleNamespace(
        rescale=lambda now, pool, count: spec(count, now.config), read=lambda: spec(3, bigger)
    )
    operations = Operations(
        before,
        plans,
        members,
        None,
        full if fault == "router file" else lambda _: None,
        full if fault == "devices" else claimed.append,
        said.append,
    )
    with pytest.raises(FleetError):
        asyncio.run(operations.reload())
    assert operations.spec is before
    assert members.by_name == running
    assert operations.waiting == ()
    assert operations.busy == ""
    assert claimed[-1:] in ([], [{0}])
    assert said[0].startswith("reload: everything stays as it is:")


def test_a_fleet_that_may_not_have_a_device_stays_as_it_is():
    def spec(*engines):
        return SimpleNamespace(engines=engines, config=None)

    def engine(name, device):
        return SimpleNamespace(name=name, pool="p", devices=(device,))

    def claim(devices):
        claimed.append(devices)
        raise FleetError("GPU 1 is used by the fleet other")

    claimed = []
    plans = SimpleNamespace(rescale=lambda now, pool, count: spec(*now.engines, engine("p-1", 1)))
    members = Nobody()
    members.by_name = {"p-0": SimpleNamespace(spec=engine("p-0", 0))}
    before = spec(engine("p-0", 0))
    operations = Operations(before, plans, members, None, None, claim, None)
    with pytest.raises(FleetError, match="used by the fleet other"):
        operations.scale("p", 2)
    assert operations.spec is before
    assert list(members.by_name) == ["p-0"]
    assert claimed == [{0, 1}, {0}], "what runs is claimed too, and all that is in the end"
