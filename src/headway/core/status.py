"""What router and supervisor tell about themselves: the one contract of all who read it.

`RouterState` is the answer of `GET /state` on the router's admin port, `FleetStatus` that of the
supervisor, `StatusReport` what `headway status --json` prints. `status.schema.json` describes them.
Fields may be added at any time; `version` grows when one goes or means something else.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headway.core.json_shape import ShapeError, from_json, schema, to_json

VERSION: Final = 1
T = TypeVar("T", "RouterState", "FleetStatus", "StatusReport")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStatus:
    """The router's own requests on an engine. Tokens: of prompts that aren't computed yet, of the
    contexts that decode, of all KV.
    """

    requests: int = 0
    prefill_tokens: int = 0
    decodes: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStatus:
    """What an engine last said of itself on /metrics: its requests, whoever sent them, the KV it
    can hold, the KV it has received.
    """

    waiting: int = 0
    running: int = 0
    kv_capacity_tokens: int | None = None
    kv_moved_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressStatus:
    """Where the router finds an engine.

    used: the IP address of the latest connection. known: all that the engine's name had when it
    was found last, looked_up_s_ago (null: never, or the engine has no name). failure: why the
    latest lookup found none; the known ones stay in use.
    """

    used: str | None = None
    known: tuple[str, ...] = ()
    looked_up_s_ago: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedEngine:
    """An engine as the router knows it.

    id: `pool/host:port`. ready, reason: whether and why new requests go there. healthy, health: as
    its checks tell. breaker: closed, open or half_open. weight: its share while it comes back, 1
    otherwise. models: what it serves. max_model_len: its context, tokens. prefill_tokens_per_s:
    learned, 0 while unknown. patience_s: how long it may be silent over what it has.
    """

    id: str
    ready: bool
    reason: str = ""
    healthy: bool = True
    health: str = "well"
    draining: bool = False
    breaker: str = "closed"
    weight: float = 1.0
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    prefill_tokens_per_s: float = 0.0
    patience_s: float = 0.0
    address: AddressStatus = AddressStatus()
    work: WorkStatus = WorkStatus()
    reported: ReportedStatus = ReportedStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedPool:
    """A pool as the router knows it. max_prompt_tokens: of the prompts that belong there."""

    name: str
    role: str
    max_prompt_tokens: int | None = None
    engines: tuple[RoutedEngine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCount:
    """How many requests a strategy has routed for one reason."""

    strategy: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterState:
    """A router. in_flight: requests it serves now."""

    version: int = VERSION
    strategy: str = ""
    in_flight: int = 0
    pools: tuple[RoutedPool, ...] = ()
    routes: tuple[RouteCount, ...] = ()

    @property
    def engines(self) -> Iterator[RoutedEngine]:
        """Of all pools."""
        return (engine for pool in self.pools for engine in pool.engines)

    def engine(self, engine_id: str) -> RoutedEngine | None:
        """The engine of that id."""
        return next((engine for engine in self.engines if engine.id == engine_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine as its supervisor knows it.

    state: queued, starting, ready, draining, stopping, stopped, backoff or failed; reason: why.
    model: null where it is the bundled one. note: what is to be said of one that runs. since_s: how
    long it has been in its state. held: by `headway drain`. side_port: of its KV transfers.
    router_id: its id in `RoutedEngine`. emulated: what its figures are marked with where its GPUs
    aren't there. devices: CPU cores or GPUs, where it is known which. log:
    the path of all that it said.
    """

    name: str
    pool: str
    role: str
    state: str
    router_id: str
    url: str
    log: str
    model: str | None = None
    reason: str = ""
    note: str = ""
    since_s: float = 0.0
    restarts: int = 0
    held: bool = False
    side_port: int | None = None
    emulated: str = ""
    devices: tuple[int, ...] = ()
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """The router's process as the supervisor knows it; fields as in `EngineStatus`."""

    state: str
    reason: str = ""
    since_s: float = 0.0
    restarts: int = 0
    pid: int | None = None
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """A fleet. serving: the router sends requests to every engine that may get them. busy: the
    operation under way, if there is one. endpoint, admin: URLs of the router. waiting: what the
    file says that counts from the next start.
    """

    name: str
    endpoint: str
    admin: str
    router: RouterStatus
    engines: tuple[EngineStatus, ...]
    version: int = VERSION
    pid: int = 0
    stopping: bool = False
    serving: bool = False
    busy: str | None = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputStatus:
    """Requests of one length class over the last `over_s` seconds: sent and met a second, the share
    met (null without requests), the others by why (`core.slo.Verdict`).
    """

    over_s: float
    met_per_s: float
    sent_per_s: float
    attainment: float | None = None
    missed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """All that is known of a fleet. router: null where it doesn't answer. goodput: by length class,
    and of `all`. decodes: how engines run their model, by name.
    """

    fleet: FleetStatus
    router: RouterState | None = None
    goodput: Mapping[str, GoodputStatus] = field(default_factory=dict)
    decodes: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION


def written(status: T, *, indent: int | None = None) -> str:
    """Its JSON."""
    return json.dumps(to_json(status), indent=indent)


def read(shape: type[T], text: str | bytes) -> T:
    """What `written` wrote. Raises ShapeError, also for what a newer headway wrote otherwise."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ShapeError(f"a {shape.__name__} should be JSON") from None
    return read_value(shape, value)


def read_value(shape: type[T], value: object) -> T:
    """As `read`, of what is parsed already."""
    version = value.get("version", VERSION) if isinstance(value, dict) else VERSION
    if isinstance(version, int) and version > VERSION:
        raise ShapeError(f"version is {version}; this headway reads up to {VERSION}: update it")
    return from_json(shape, value)


def schema_text() -> str:
    """What is stored in `status.schema.json`: `StatusReport`, with all the others in it."""
    return json.dumps(schema(StatusReport), indent=2) + "\n"
