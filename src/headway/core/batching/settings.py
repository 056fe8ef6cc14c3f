"""What an operator may set about batching, parsed strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from headway.core.errors import SettingError

LONG_PREFILL_TOKENS: Final = 10_000
"""What counts as a long prompt on a model with a context of `FULL_CONTEXT_TOKENS` or more."""
FULL_CONTEXT_TOKENS: Final = 131_072
PRIORITY_LEVELS: Final = 8
"""Client priorities beyond ±this count as this, so that lanes stay few."""
MOST: Final = 1e9
"""The largest number of seconds or factor: products of them are finite."""

ORDERS: Final = ("fcfs", "short-first", "penalised", "feasible-first")
BUDGETS: Final = ("fixed", "deadline")


@dataclass(frozen=True, slots=True)
class Preset:
    """A named combination of caps, order and budget. meaning: what it does, for users."""

    meaning: str
    order: str
    budget: str
    max_num_partial_prefills: int
    max_long_partial_prefills: int


PRESETS: Final[Mapping[str, Preset]] = {
    "sequential": Preset(
        "one prompt prefilled at a time, in order of arrival", "fcfs", "fixed", 1, 1
    ),
    "parallel": Preset(
        "up to 4 prompts mid-prefill at once, of which 1 long; short ones pass by",
        "short-first",
        "fixed",
        4,
        1,
    ),
    "priority": Preset(
        "long prompts wait longer, age so that none starves; client priorities count",
        "penalised",
        "fixed",
        4,
        1,
    ),
    "slo": Preset(
        "deadlines decide the order, and the prefill chunk of each step",
        "feasible-first",
        "deadline",
        4,
        2,
    ),
}
DEFAULT_POLICY: Final = "slo"


STOCK: Final = "vllm"
"""The policy name that stands for vLLM's own scheduler, which has one of the settings below."""
STOCK_SETTINGS: Final = ("policy", "long_prefill_token_threshold")


@dataclass(frozen=True, slots=True)
class Words:
    """A setting that is one of some words."""

    words: tuple[str, ...]

    def read(self, value: object, key: str) -> str:
        """The word. Raises SettingError."""
        if value not in self.words:
            raise SettingError(key, f"{value!r} is not one of: {', '.join(self.words)}")
        return str(value)


@dataclass(frozen=True, slots=True)
class Cardinal:
    """A whole number from 1."""

    def read(self, value: object, key: str) -> int:
        """The number. Raises SettingError."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingError(key, f"{value!r} is not a whole number; use 1 or more")
        if value < 1:
            raise SettingError(key, f"{value} is out of range; use 1 or more")
        return value


@dataclass(frozen=True, slots=True)
class Amount:
    """A number above 0 and up to `MOST`. unit: seconds, or a factor."""

    unit: Literal["seconds", "factor"]

    def read(self, value: object, key: str) -> float:
        """The number. Raises SettingError."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingError(key, f"{value!r} is not a number; use seconds such as 1.5")
        if not 0 < value <= MOST:
            problem = f"{value!r} is out of range; use a number above 0, at most {MOST:g}"
            raise SettingError(key, problem)
        return float(value)


@dataclass(frozen=True, slots=True)
class Level:
    """A whole number from -`most` to `most`."""

    most: int

    def read(self, value: object, key: str) -> int:
        """The number. Raises SettingError."""
        right = f"use one from {-self.most} to {self.most}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise SettingError(key, f"{value!r} is not a whole number; {right}")
        if abs(value) > self.most:
            raise SettingError(key, f"{value} is out of range; {right}")
        return value


@dataclass(frozen=True, slots=True)
class BatchingSetting:
    """What is known of a setting, for flags, files, schema and documentation.

    meaning: for people. kind: what it may be. default: None where it follows from others, and then
    default_said says how.
    """

    meaning: str
    kind: Words | Cardinal | Amount | Level
    default: str | float | None = None
    default_said: str = ""

    @property
    def said(self) -> str:
        """Its default, for people."""
        return self.default_said or f"{self.default:g}"


def _setting(*known: Any, **more: Any) -> Any:
    return field(metadata={"setting": BatchingSetting(*known, **more)})


_THE_POLICYS: Final = "the policy's"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """A batching policy with its parameters, each described where it stands."""

    policy: str = _setting(
        "how requests share the engine: the preset that the others start from, or "
        f'"{STOCK}" for its own scheduler',
        Words(tuple(PRESETS)),
        default=DEFAULT_POLICY,
        default_said=DEFAULT_POLICY,
    )
    order: str = _setting("who gets prefill tokens first", Words(ORDERS), default_said=_THE_POLICYS)
    budget: str = _setting(
        "prefill tokens a step carries: the engine's own number, or what deadlines allow",
        Words(BUDGETS),
        default_said=_THE_POLICYS,
    )
    max_num_partial_prefills: int = _setting(
        "prompts that may be mid-prefill at once", Cardinal(), default_said=_THE_POLICYS
    )
    max_long_partial_prefills: int = _setting(
        "of these, how many may be long", Cardinal(), default_said=_THE_POLICYS
    )
    long_prefill_token_threshold: int = _setting(
        f'a prompt with more uncached tokens is long; with policy "{STOCK}" vLLM\'s own flag',
        Cardinal(),
        default_said=f"{LONG_PREFILL_TOKENS}, or in proportion to a context below "
        f"{FULL_CONTEXT_TOKENS}",
    )
    ttft_slo_s: float = _setting("time to first token, seconds at most", Amount("seconds"), 1.0)
    ttft_slo_factor: float = _setting(
        "a long prompt's limit is this many times its prefill alone", Amount("factor"), 4.0
    )
    tpot_slo_s: float = _setting("time per output token, seconds at most", Amount("seconds"), 0.15)
    max_wait_s: float = _setting(
        "a prompt that has waited longer is guaranteed a share of prefill",
        Amount("seconds"),
        120.0,
    )
    min_client_slo_factor: float = _setting(
        "the tightest limits clients may ask for, as a multiple of the engine's",
        Amount("factor"),
        1.0,
    )
    max_client_slo_factor: float = _setting(
        "the widest limits clients may ask for", Amount("factor"), default_said="10"
    )
    min_client_priority: int = _setting(
        "the most urgent priority clients may ask for (lower goes first)", Level(PRIORITY_LEVELS), 0
    )


SETTINGS: Final[Mapping[str, BatchingSetting]] = {
    each.name: each.metadata["setting"] for each in fields(BatchingSettings)
}


def long_threshold_for(max_model_len: int) -> int:
    """`LONG_PREFILL_TOKENS`, in proportion on a model with a smaller context (tokens)."""
    share = min(1.0, max_model_len / FULL_CONTEXT_TOKENS)
    return max(1, round(LONG_PREFILL_TOKENS * share))


def parse(values: Mapping[str, Any], max_model_len: int, path: str = "headway") -> BatchingSettings:
    """Settings from plain values, each checked.

    values: any of `SETTINGS`; what is absent comes from the preset that
        `policy` names (by default `slo`).
    max_model_len: the model's context, tokens.
    path: prefix of keys in errors.

    Raises SettingError for an unknown key, a wrong type or a value out of range.
    """
    unknown = sorted(set(values) - set(SETTINGS))
    if unknown:
        known = ", ".join(SETTINGS)
        raise SettingError(f"{path}.{unknown[0]}", f"unknown setting; known are: {known}")
    read: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        value = values.get(name)
        if name not in values:
            value = _default(name, read, max_model_len)
        read[name] = setting.kind.read(value, f"{path}.{name}")
    settings = BatchingSettings(**read)
    _check(settings, path)
    return settings


def _default(name: str, before: Mapping[str, Any], max_model_len: int) -> object:
    """What a setting is that isn't given. before: those that stand before it."""
    if name == "long_prefill_token_threshold":
        return long_threshold_for(max_model_len)
    if name == "max_client_slo_factor":
        return max(10.0, before["min_client_slo_factor"])
    default: object = SETTINGS[name].default
    if default is None:
        default = getattr(PRESETS[before["policy"]], name)
    if name == "max_long_partial_prefills":
        return min(int(str(default)), before["max_num_partial_prefills"])
    return default


def _check(settings: BatchingSettings, path: str) -> None:
    """Rules that two settings have a part in. Raises SettingError."""
    most = settings.max_num_partial_prefills
    if settings.max_long_partial_prefills > most:
        raise SettingError(
            f"{path}.max_long_partial_prefills",
            f"{settings.max_long_partial_prefills} is more than max_num_partial_prefills "
            f"({most}); use at most {most}",
        )
    least, widest = settings.min_client_slo_factor, settings.max_client_slo_factor
    if least > widest:
        raise SettingError(
            f"{path}.min_client_slo_factor",
            f"{least:g} is more than max_client_slo_factor ({widest:g}); use at most {widest:g}",
        )
