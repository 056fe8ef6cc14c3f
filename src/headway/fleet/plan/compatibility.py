"""Whether prefill and decode engines fit one another, known before anything starts.

vLLM's NixlConnector compares most of this too, when the first KV is to move; by then requests
depend on it (`compute_nixl_compatibility_hash`).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from headway.config import Pool, Problem
from headway.config.lines import Path
from headway.fleet.plan import vllm_flags as flags
from headway.fleet.plan.plan import started
from headway.fleet.plan.spec import FleetSpec
from headway.models import bundled

_AUTO: Final = ("", "auto")
_CONNECTORS: Final = ("NixlConnector", "NixlPushConnector", "MultiConnector")
_SAME: Final = {
    "--dtype": "dtype",
    "--quantization": "quantization",
    "--revision": "model revision",
    "--hf-overrides": "model overrides",
    "--served-model-name": "served model name",
    "--block-size": "block size",
    "--kv-cache-dtype": "KV cache dtype",
    "--attention-backend": "attention backend",
    "--attention-config": "attention configuration",
    "--speculative-config": "speculative decoding",
    "--disable-hybrid-kv-cache-manager": "hybrid KV cache manager",
}
"""vLLM flags that must agree, and what they set."""
_BACKEND_VARIABLE: Final = "VLLM_ATTENTION_BACKEND"


class _Side(NamedTuple):
    """One pool of a pair. number: its index in the file."""

    number: int
    pool: Pool
    flags: dict[str, flags.Given]
    connector: flags.Connector | None

    @property
    def label(self) -> str:
        return f'pool "{self.pool.name}"'

    def place(self, *names: str | int) -> Path:
        return ("pool", self.number, *names)


def problems(spec: FleetSpec) -> list[Problem]:
    """What keeps KV from moving between the pools that are started; empty if nothing does.

    Engines that run elsewhere aren't known well enough to be judged.
    """
    config = spec.config
    if not config.router.routing.splits:
        return []
    sides = [_side(index, pool) for index, pool in started(config)]
    found = [problem for side in sides for problem in _connector(side, config.router.strategy)]
    for sender in sides:
        for receiver in sides:
            if (
                sender.number != receiver.number
                and sender.pool.role != "decode"
                and receiver.pool.role != "prefill"
            ):
                found += [*_differences(sender, receiver), *_limits(sender, receiver)]
    # Two pools of role "both" are a pair twice.
    return [config.source.problem(path, said) for path, said in dict.fromkeys(found)]


def _side(index: int, pool: Pool) -> _Side:
    given = flags.given(pool.flags)
    if _BACKEND_VARIABLE in pool.env and "--attention-backend" not in given:
        given["--attention-backend"] = flags.Given(pool.env[_BACKEND_VARIABLE], -1)
    return _Side(index, pool, given, flags.connector(pool.flags))


def _connector(side: _Side, strategy: str) -> Iterator[tuple[Path, str]]:
    own, role = side.connector, side.pool.role
    if own is None:
        if role == "both":
            yield (
                side.place("role"),
                (
                    f'with "{strategy}" its KV is to move too, and "both" starts without a KV '
                    'connector; use "prefill" or "decode", or add --kv-transfer-config to flags'
                ),
            )
        return
    at = side.place("flags", own.place)
    if own.problem:
        yield at, f"{flags.KV_TRANSFER} {own.problem}"
    elif own.name not in _CONNECTORS:
        yield (
            at,
            (
                f'"{own.name}" is not a connector that headway hands KV over with; leave out '
                f"{flags.KV_TRANSFER}, or use NixlConnector"
            ),
        )
    elif own.role == ("kv_consumer" if role == "prefill" else "kv_producer") and role != "both":
        right = "kv_producer" if role == "prefill" else "kv_consumer"
        yield at, f'"{own.role}" contradicts role = "{role}"; use "kv_both" or "{right}"'


def _differences(sender: _Side, receiver: _Side) -> Iterator[tuple[Path, str]]:
    models = [side.pool.model or "the bundled model" for side in (sender, receiver)]
    if models[0] != models[1]:
        yield (
            receiver.place("model"),
            (
                f"is {models[1]}, and KV comes from {sender.label} with {models[0]}; "
                "use one model for both"
            ),
        )
    for flag, what in _SAME.items():
        sent, received = _value(sender, flag), _value(receiver, flag)
        if sent != received:
            setter = receiver if received is not None else sender
            other = sender if setter is receiver else receiver
            value = received if received is not None else sent
            theirs = sent if received is not None else None
            yield (
                _place_of(setter, flag),
                (
                    f"the {what} is {value} here and {theirs or 'not set'} in {other.label}; "
                    "KV moves only between equal ones, so set the same in both"
                ),
            )
    names = [
        side.connector.name if side.connector else "NixlConnector" for side in (sender, receiver)
    ]
    if names[0] != names[1] and all(name in _CONNECTORS for name in names):
        setter = receiver if receiver.connector else sender
        yield (
            _place_of(setter, flags.KV_TRANSFER),
            f"{sender.label} has {names[0]} and {receiver.label} {names[1]}; use one for both",
        )


def _value(side: _Side, flag: str) -> str | None:
    """What the flag is set to; None for what it is without being set."""
    given = side.flags.get(flag)
    # Without a dtype of its own the bundled model doesn't get vLLM's choice on CPUs.
    chosen = flag == "--dtype" and side.pool.model is None
    return None if given is None or (given.value in _AUTO and not chosen) else given.value


def _place_of(side: _Side, flag: str) -> Path:
    if flag == flags.KV_TRANSFER and side.connector:
        return side.place("flags", side.connector.place)
    place = side.flags[flag].place
    return side.place("env", _BACKEND_VARIABLE) if place < 0 else side.place("flags", place)


def _limits(sender: _Side, receiver: _Side) -> Iterator[tuple[Path, str]]:
    accepted, fits = sender.pool.max_model_len, receiver.pool.max_model_len
    if sender.pool.model is None:
        accepted = accepted or bundled.CONTEXT_TOKENS
    if fits is not None and (accepted is None or accepted > fits):
        longer = "the model's whole context" if accepted is None else f"{accepted} tokens"
        yield (
            receiver.place("max_model_len"),
            (
                f"{fits} is less than {sender.label} takes ({longer}): its prompts wouldn't "
                f"fit here; use more here, or max_model_len = {fits} there"
            ),
        )
    one, other = sender.pool.tensor_parallel_size, receiver.pool.tensor_parallel_size
    if max(one, other) % min(one, other):
        yield (
            receiver.place("tensor_parallel_size"),
            f"{other} doesn't fit {one} of {sender.label}: one must be a multiple of the other",
        )
