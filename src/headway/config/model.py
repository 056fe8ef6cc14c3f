"""The settings of the router and its pools: names, types, defaults, what values may be and mean.

Parsing, the JSON schema and the explanation are all made from these classes: every field carries
its check and its meaning.
"""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from headway.config.checks import (
    Choice,
    EngineAddress,
    EngineUrl,
    FilePath,
    Flag,
    Host,
    Items,
    Number,
    Text,
    Whole,
)
from headway.config.clients import CLIENT, EVERYONE, ClientSettings
from headway.config.fleet import (
    DEVICE,
    MODEL,
    Batching,
    EmulatedGpu,
    Fleet,
    Kubernetes,
    Variables,
    VllmFlag,
)
from headway.config.keys import KeyEntry, KeyHash, KeyRing
from headway.config.problems import Source
from headway.config.reading import Named
from headway.core.batching.settings import LONG_PREFILL_TOKENS
from headway.core.client_range import ClientRange
from headway.core.hardware.emulation import Emulation
from headway.core.routing.strategies import (
    DEFAULT_STRATEGY,
    LENGTH_STRATEGIES,
    MEANINGS,
    STRATEGY_BY_NAME,
    Strategy,
)

ROLES: Final = ("both", "prefill", "decode")

MOST_REPLICAS: Final = 1000
"""Engines of a pool."""
_SECONDS: Final = Number(most=7 * 24 * 3600)
_TOKENS: Final = Whole(1)
_ORIGIN: Final = Text(
    r"\*|https?://[^\s/]{1,253}",
    'the origin of a web page; use one such as "https://chat.example.com", or "*"',
)
_SIZE: Final = Whole(1, 1024)
_STRATEGY: Final = f"how requests are spread over the pools; {MEANINGS}"
_PROMPT_LIMIT: Final = (
    f"{LENGTH_STRATEGIES}: prompts up to this many uncached tokens go here; not set: any"
)
_NAME: Final = Text(r"[A-Za-z0-9._-]{1,64}", "a name of up to 64 letters, digits, . _ or -")
# Lower case isn't taken, so that a key put here by mistake isn't a valid name and shown to people.
_VARIABLE: Final = Text(
    r"[A-Z_][A-Z0-9_]*",
    'the name of an environment variable in capitals; use one such as "ENGINE_KEY"',
    private=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS for clients. Without this section the router speaks plain HTTP."""

    cert: Annotated[pathlib.Path, FilePath(), "the certificate chain's file, PEM"]
    key: Annotated[pathlib.Path, FilePath(), "the private key's file, PEM without a passphrase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTls:
    """TLS to engines that run elsewhere with https. Without this section the machine's
    certificate authorities count, and engines aren't told who asks.
    """

    ca: Annotated[
        pathlib.Path | None,
        FilePath(),
        "the file with the authorities that engines' certificates come from, PEM; not set: the "
        "machine's",
    ] = None
    cert: Annotated[
        pathlib.Path | None, FilePath(), "the router's own certificate chain for engines, PEM"
    ] = None
    key: Annotated[
        pathlib.Path | None, FilePath(), "its private key's file, PEM without a passphrase"
    ] = None

    def files(self) -> dict[str, pathlib.Path]:
        """What is set, by name."""
        named = {"ca": self.ca, "cert": self.cert, "key": self.key}
        return {name: path for name, path in named.items() if path}


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSettings:
    """Latency targets: spilling, attainment and goodput are judged by them."""

    ttft_s: Annotated[float, _SECONDS, "time to first token, at most, of a short prompt"] = 1.0
    ttft_factor: Annotated[
        float,
        Number(most=1000),
        "the limit of a long prompt is this many times its prefill alone, if that is more",
    ] = 4.0
    tpot_s: Annotated[float, _SECONDS, "time per output token, at most"] = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """When the router gives up on an engine."""

    connect_s: Annotated[float, _SECONDS, "to connect"] = 2.0
    first_byte_s: Annotated[
        float, _SECONDS, "from the request to the answer's first byte, whatever the prompt"
    ] = 120.0
    first_byte_s_per_1k_tokens: Annotated[
        float, Number(most=3600, zero=True), "and this much more for each 1,000 prompt tokens"
    ] = 10.0
    idle_s: Annotated[float, _SECONDS, "between two pieces of an answer"] = 120.0
    total_s: Annotated[float, _SECONDS, "for a request as a whole"] = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys that clients and engines ask for. Without client keys anyone may use the router."""

    file: Annotated[pathlib.Path | None, FilePath(), "client keys, one name:sha256 a line"] = None
    hashes: Annotated[
        tuple[KeyHash, ...],
        Items(KeyEntry(), 1, '["alice:…"], each a name and the SHA-256 of a key'),
        "client keys, each name:sha256",
    ] = ()
    engine_key_env: Annotated[
        str | None, _VARIABLE, "environment variable with the key that engines ask for"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Requests tried again on another engine, before the first byte of an answer."""

    ratio: Annotated[
        float, Number(most=1, zero=True), "retries, at most, as a share of requests"
    ] = 0.2
    min_per_s: Annotated[
        float, Number(most=1000, zero=True), "retries a second that are allowed in any case"
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Checks of the engines' /health."""

    interval_s: Annotated[float, _SECONDS, "between two checks of an engine"] = 5.0
    timeout_s: Annotated[float, _SECONDS, "for an answer to a check"] = 5.0
    fails: Annotated[int, Whole(1, 100), "failed checks in a row until no requests go there"] = 3
    passes: Annotated[
        int, Whole(1, 100), "passed checks in a row until requests go there again"
    ] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The router itself."""

    host: Annotated[
        str, Host(), 'address to listen on; "0.0.0.0": all of IPv4; "::": all of IPv6 and IPv4'
    ] = "127.0.0.1"
    port: Annotated[int, Whole(0, 65535), "where clients connect; 0: any free port"] = 8000
    admin_port: Annotated[
        int,
        Whole(0, 65535),
        "state and draining, on the loopback address only; 0: off, with `headway up` any free port",
    ] = 9001
    strategy: Annotated[str, Choice(tuple(STRATEGY_BY_NAME)), _STRATEGY] = DEFAULT_STRATEGY
    receipt: Annotated[
        bool,
        Flag(),
        "answers say how they were served: Server-Timing, X-Headway-Route",
    ] = True
    max_concurrent: Annotated[
        int, Whole(1, 10**6), "requests at once; one more is answered with 429 and Retry-After"
    ] = 4096
    max_body_bytes: Annotated[
        int, Whole(1024, 2**34), "size of a request's body; a bigger one is answered with 413"
    ] = 64 * 2**20
    max_bodies_bytes: Annotated[
        int | None,
        Whole(1024, 2**40),
        "size of all bodies that are held at once, each until its answer begins; beyond it 429 and "
        "Retry-After; not set: four times max_body_bytes",
    ] = None
    keep_alive_s: Annotated[
        float,
        _SECONDS,
        "a client's connection may rest; a proxy in front should close its own before",
    ] = 75.0
    allowed_origins: Annotated[
        tuple[str, ...],
        Items(_ORIGIN, 1, '["https://chat.example.com"]'),
        'web pages whose scripts may use the router, by origin; "*": all; not set: none',
    ] = ()
    long_prompt_tokens: Annotated[
        int, _TOKENS, "a prompt with more uncached tokens counts as long in metrics and reasons"
    ] = LONG_PREFILL_TOKENS
    tokenizer: Annotated[
        pathlib.Path | None,
        FilePath(),
        "a tokenizer.json that prompts are counted with; not set: estimated from their bytes",
    ] = None
    seed: Annotated[
        int | None,
        Whole(0, 2**63 - 1),
        "of the draws that break ties, to repeat a run; not set: another one at each start",
    ] = None
    tls: Tls | None = None
    slo: SloSettings = SloSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    keys: Keys = Keys()
    clients: Annotated[Mapping[str, ClientSettings], Named(ClientSettings, CLIENT)] = field(
        default_factory=dict
    )
    retries: Retries = Retries()
    health: Health = Health()

    @property
    def routing(self) -> Strategy:
        """The row of its strategy."""
        return STRATEGY_BY_NAME[self.strategy]

    @property
    def client_ranges(self) -> dict[str, ClientRange]:
        """What clients may ask for, by name; last EVERYONE's, which holds for all others."""
        slo, named = self.slo, dict(self.clients)
        named[EVERYONE] = named.pop(EVERYONE, ClientSettings())
        return {
            name: client.range(name, ttft_s=slo.ttft_s, tpot_s=slo.tpot_s)
            for name, client in named.items()
        }

    @property
    def bodies_bytes(self) -> int:
        """max_bodies_bytes, or what it is where it isn't set."""
        return self.max_bodies_bytes or 4 * self.max_body_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Engines of one kind, running elsewhere (`engines`) or to be started by `headway up`.

    Token limits, sizes and memory are those of each engine.
    """

    name: Annotated[str, _NAME, "a name for metrics and receipts"]
    role: Annotated[
        str,
        Choice(ROLES),
        "both: anything; prefill: no decoding; decode: what is prefilled, or whole",
    ] = "both"
    engines: Annotated[
        tuple[EngineAddress, ...],
        Items(EngineUrl(), 1, '["http://127.0.0.1:8100"]'),
        "the URLs where its engines listen; not set: `headway up` starts them",
    ] = ()
    max_prompt_tokens: Annotated[
        int | None,
        _TOKENS,
        _PROMPT_LIMIT,
    ] = None
    max_model_len: Annotated[
        int | None,
        _TOKENS,
        "the engines' context, tokens; not set: as the engines say, when started the model's",
    ] = None
    kv_capacity_tokens: Annotated[
        int | None, _TOKENS, "tokens their KV cache holds; not set: as the engines say"
    ] = None
    kv_lease_s: Annotated[
        float, _SECONDS, "how long a prefill engine keeps KV that nobody fetched (vLLM: 30)"
    ] = 30.0
    tls: EngineTls | None = None
    replicas: Annotated[int, Whole(1, MOST_REPLICAS), "how many engines to start"] = 1
    model: Annotated[
        str | None,
        MODEL,
        "a directory or a hub name; ./ starts at this file's folder; not set: the bundled model",
    ] = None
    devices: Annotated[
        tuple[int, ...],
        Items(DEVICE, 1, "[0, 1]"),
        "GPUs, or CPU cores on vLLM's CPU build; not set: a share of what other pools don't name",
    ] = ()
    tensor_parallel_size: Annotated[
        int, _SIZE, "devices that share each layer (on CPUs: groups of cores)"
    ] = 1
    pipeline_parallel_size: Annotated[
        int, _SIZE, "groups of such devices, each with a part of the layers"
    ] = 1
    emulate: Annotated[
        Emulation | None,
        EmulatedGpu(),
        'GPUs that aren\'t there, such as "h100-sxm" or { gpu = "h100-sxm", slow = 4.0 }: nothing '
        "is computed (docs/emulation.md); not set: real ones",
    ] = None
    kv_memory_gib: Annotated[
        float | None,
        Number(most=2**20),
        "memory for the KV cache; not set: as vLLM finds, on CPUs 4 (bundled model: 2)",
    ] = None
    flags: Annotated[
        tuple[str, ...], Items(VllmFlag(), 1, '["--flag", "value"]'), "further flags for vLLM"
    ] = ()
    env: Annotated[
        Mapping[str, str], Variables(), "further environment variables of the engines"
    ] = field(default_factory=dict)
    batching: Batching = field(default_factory=Batching)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration. Two are equal when they say the same, wherever it is written.

    keys: the clients' keys, those of the key file included.
    files: what it was read from: the configuration, then the files it names.
    """

    router: Router
    pools: tuple[Pool, ...]
    fleet: Fleet = field(default_factory=Fleet)
    keys: KeyRing = field(default_factory=KeyRing)
    files: tuple[pathlib.Path, ...] = field(default=(), compare=False)
    source: Source = field(compare=False, repr=False)
