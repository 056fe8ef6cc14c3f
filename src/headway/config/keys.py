"""Keys of clients, kept as hashes.

SHA-256 without a salt suits keys that are long and random, as API keys are: what makes password
hashes slow on purpose would only let strangers with wrong keys slow the router down.
"""

import hashlib
import hmac
import pathlib
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headway.config.checks import BadValueError, bad, kind
from headway.config.problems import Problem
from headway.core.errors import SettingError

SHORTEST_KEY: Final = 20
"""Characters a key must have at least: fewer could be guessed from its hash."""

_ENTRY: Final = re.compile(r"([A-Za-z0-9._-]{1,64}):([0-9a-f]{64})")
_ENTRY_RIGHT: Final = 'use "name:hash" with the SHA-256 of the key as 64 lower-case hex digits'
_MOST_BYTES: Final = 16 * 2**20


def hash_key(key: str) -> str:
    """What is kept of a key: its SHA-256 in hex. Raises SettingError for one that is too short."""
    if len(key) < SHORTEST_KEY:
        raise SettingError(
            "key", f"has {len(key)} characters; use {SHORTEST_KEY} or more, made at random"
        )
    return _digest(key).hex()


class KeyHash(NamedTuple):
    """A client's name and the hash of its key. A name may have several keys."""

    name: str
    digest: bytes

    def __str__(self) -> str:
        return f"{self.name}:…"


class KeyRing:
    """The keys that clients may use; false when none are asked for.

    asked: a key is asked for even if there are no hashes, so that nobody gets in.
    """

    def __init__(self, hashes: Iterable[KeyHash] = (), *, asked: bool = False) -> None:
        self._hashes = frozenset(hashes)
        self._asked = asked or bool(self._hashes)
        # Looked up by a hash under a secret of this process: how long a look-up takes says
        # nothing about the hashes kept here.
        self._secret = secrets.token_bytes(32)
        self._found = {self._blind(entry.digest): entry for entry in self._hashes}

    def check(self, key: str) -> str | None:
        """The name the key belongs to, or None. Its time doesn't depend on how wrong a key is."""
        digest = _digest(key)
        entry = self._found.get(self._blind(digest))
        return entry.name if entry and hmac.compare_digest(entry.digest, digest) else None

    @property
    def names(self) -> tuple[str, ...]:
        """Whose keys these are, sorted."""
        return tuple(sorted({entry.name for entry in self._hashes}))

    def __bool__(self) -> bool:
        return self._asked

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyRing):
            return NotImplemented
        return (self._hashes, self._asked) == (other._hashes, other._asked)

    def __hash__(self) -> int:
        return hash(self._hashes)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.names)})"

    def _blind(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """Check for `name:hash`; what it refuses isn't repeated, as it may be a key."""

    def read(self, value: object) -> KeyHash:
        if not isinstance(value, str):
            raise bad(f"{kind(value)} is not a string; {_ENTRY_RIGHT}")
        match = _ENTRY.fullmatch(value)
        if not match:
            raise bad(f"the entry is not a name and a hash; {_ENTRY_RIGHT}")
        return KeyHash(match[1], bytes.fromhex(match[2]))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{_ENTRY.pattern})$"}


def read_file(path: pathlib.Path) -> tuple[list[KeyHash], list[Problem]]:
    """The entries of a key file, one a line, and what is wrong with the others.

    Empty lines and lines that start with # are left out. Raises OSError.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        return [], [Problem("", f"has more than {_MOST_BYTES} bytes", str(path))]
    entries: list[KeyHash] = []
    problems: list[Problem] = []
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            entries.append(KeyEntry().read(text))
        except BadValueError as error:
            problems += [Problem("", said, str(path), number) for _, said in error.found]
    if not entries and not problems:
        problems.append(Problem("", f"has no keys; {_ENTRY_RIGHT}", str(path)))
    return entries, problems


def repeated(entries: Iterable[KeyHash]) -> list[str]:
    """Names whose key is there more than once, or under another name too."""
    entries = list(entries)
    count = Counter(entry.digest for entry in entries)
    return sorted({entry.name for entry in entries if count[entry.digest] > 1})


def engine_key(variable: str | None, environ: Mapping[str, str]) -> str | None:
    """The key the engines ask for, from the environment variable that the settings name.

    Raises SettingError if it is named and not set, or can't be a header's value.
    """
    if variable is None:
        return None
    key = environ.get(variable, "")
    name = "router.keys.engine_key_env"
    if not key:
        raise SettingError(name, f"the environment variable {variable} is not set")
    if not re.fullmatch(r"[!-~]+", key):
        raise SettingError(
            name, f"the environment variable {variable} holds more than printable ASCII characters"
        )
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
