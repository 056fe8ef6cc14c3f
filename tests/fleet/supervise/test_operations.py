"""What the supervisor's socket takes: whatever else is asked is refused in few words."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from headway.core.errors import HeadwayError
from headway.fleet.errors import FleetError
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
    assert claimed == [{0, 1}], "what runs is claimed too"
