"""What one value may be: a check reads it, or says what would be right, and has its schema."""

import ipaddress
import json
import math
import pathlib
import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from headway.config.lines import Path

_URL: Final = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})/?")
_URL_EXAMPLE: Final = "http://127.0.0.1:8100"
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_SHOWN: Final = 60


class BadValueError(ValueError):
    """A value that a check refuses; `found` holds paths below the value and what is wrong there."""

    def __init__(self, *found: tuple[Path, str]) -> None:
        super().__init__(*found)
        self.found = found


def bad(problem: str) -> BadValueError:
    """The refusal of the value as a whole."""
    return BadValueError(((), problem))


class Check(Protocol):
    """A kind of value."""

    def read(self, value: object) -> Any:
        """The value as the settings hold it; raises BadValueError."""

    def schema(self) -> dict[str, Any]:
        """JSON schema of what `read` takes."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    least: int
    most: int = 10**12

    def read(self, value: object) -> int:
        right = f"use a whole number from {self.least} to {self.most}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad(f"{shown(value)} is not a whole number; {right}")
        if not self.least <= value <= self.most:
            raise bad(f"{shown(value)} is out of range; {right}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number up to `most`, above 0; or 0 too, with `zero`."""

    most: float
    zero: bool = False

    def read(self, value: object) -> float:
        least = "from 0" if self.zero else "above 0"
        right = f"use a number {least} and up to {self.most:.12g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad(f"{shown(value)} is not a number; {right}")
        fits = (value >= 0 if self.zero else value > 0) and value <= self.most
        if not (fits and math.isfinite(value)):
            raise bad(f"{shown(value)} is out of range; {right}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        least = "minimum" if self.zero else "exclusiveMinimum"
        return {"type": "number", least: 0, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise bad(f"{shown(value)} is not a yes or no; use true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.words:
            allowed = ", ".join(f'"{word}"' for word in self.words)
            raise bad(f"{shown(value)} is not one of: {allowed}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Text:
    """A string that `pattern` matches as a whole.

    right: what it must be, for the error.
    private: the error doesn't repeat the value, which may be a secret in the wrong place.
    """

    pattern: str
    right: str
    private: bool = False

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise bad(f"{kind(value) if self.private else shown(value)} is not {self.right}")
        if not re.fullmatch(self.pattern, value):
            raise bad(f"{'the value' if self.private else shown(value)} is not {self.right}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True, slots=True)
class Host:
    """A host name or an IP address to listen on."""

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise bad(f'{shown(value)} is not a string; use an address such as "127.0.0.1"')
        if not _HOST.fullmatch(value):
            raise bad(f"{shown(value)} is not a host name or an IP address; leave out the port")
        if ":" in value or value.replace(".", "").isdigit():
            try:
                ipaddress.ip_address(value)
            except ValueError:
                raise bad(
                    f"{shown(value)} is not an IP address; the port has its own key"
                ) from None
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{_HOST.pattern})$"}


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path, not opened here; one that isn't absolute starts at the configuration's folder."""

    def read(self, value: object) -> pathlib.Path:
        if not isinstance(value, str) or not value or "\0" in value:
            raise bad(f"{shown(value)} is not the path of a file")
        return pathlib.Path(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


class EngineAddress(NamedTuple):
    """Where an engine listens. `host` is lower-case, IPv6 without brackets; `tls` means https."""

    tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


@dataclass(frozen=True, slots=True)
class EngineUrl:
    """`http://host:port` or `https://host:port` and nothing more."""

    def read(self, value: object) -> EngineAddress:
        right = f"use one such as {_URL_EXAMPLE}"
        if not isinstance(value, str):
            raise bad(f"{shown(value)} is not a URL in quotes; {right}")
        match = _URL.fullmatch(value)
        if not match:
            # A password or a key in a URL is not repeated.
            said = "the URL" if "@" in value or "?" in value else shown(value)
            raise bad(f"{said} {_url_problem(value)}; {right}")
        host, port = match[2].strip("[]").lower(), int(match[3])
        if not 0 < port < 65536:
            raise bad(f"{shown(value)} has port {port}; ports go from 1 to 65535")
        if ":" in host:
            try:
                host = str(ipaddress.IPv6Address(host))
            except ValueError:
                raise bad(f"{shown(value)} has no valid IPv6 address; {right}") from None
        return EngineAddress(match[1] == "https", host, port)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{_URL.pattern})$"}


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"}:
        return "doesn't start with http:// or https://"
    if "@" in parts.netloc:
        return "has a user name in it; engines' keys come from router.keys.engine_key_env"
    if parts.path.strip("/") or parts.query or parts.fragment:
        return "has more than a host and a port"
    return "has no port" if port is None else "is not a URL"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at least `least` values of one kind, read as a tuple.

    example: a right list, for the error.
    """

    item: Check
    least: int
    example: str

    def read(self, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise bad(f"{kind(value)} is not a list; use {self.example}")
        if len(value) < self.least:
            raise bad(f"is empty; use {self.example}")
        items: list[Any] = []
        found: list[tuple[Path, str]] = []
        for index, each in enumerate(value):
            try:
                items.append(self.item.read(each))
            except BadValueError as error:
                found += [((index, *path), problem) for path, problem in error.found]
        if found:
            raise BadValueError(*found)
        return tuple(items)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(), "minItems": self.least}


def shown(value: object) -> str:
    """The value as TOML would have it, shortened; only the kind of tables and lists."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= _SHOWN else f'{text[:_SHOWN]}…"'
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number with more than 38 digits"
    return str(value) if isinstance(value, int | float) else kind(value)


def kind(value: object) -> str:
    """What kind of TOML value it is."""
    names = {bool: "true or false", str: "a string", int: "a number", float: "a number"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")
