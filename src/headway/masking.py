"""What may be shown of environments and command lines: passwords, keys and tokens may not."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

HIDDEN: Final = "***"
VARIABLE_BY_FLAG: Final[Mapping[str, str]] = {
    "--api-key": "VLLM_API_KEY",
    "--hf-token": "HF_TOKEN",
}
"""vLLM's flags whose values are secret, and the variables that say the same unseen."""
_SECRET_NAME: Final = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE"
    r"|(?:^|_)(?:AUTH|AUTHORIZATION|BEARER|COOKIE|PAT)(?:_|$)|_PWD(?:_|$)|OTLP_(?:\w+_)?HEADERS$"
    r"|(?:API|ACCESS|ACCOUNT|ENGINE|LICENSE|ENCRYPTION|SAS|STORAGE)_?KEYS?(?:_|$)|(?:^|_)KEY$",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(
    r"TOKENS|TOKEN_(?:BUDGET|COUNT|IDS?|LIMIT|THRESHOLD|PATH|FILE)|_(?:FILE|PATH|DIR)$"
)
_NAMED: Final = re.compile(
    r"""(?P<name>(?<![\w.-])[\w.-]{1,64})(?P<equals>["']?\s?[:=]\s?)(?P<quote>["'])(?P<value>[^"'\n]+)(?P=quote)"""
)
"""A name and its value in quotes, as JSON, Python and shells write them."""
_IN_URL: Final = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]+@")
_BEARER: Final = re.compile(r"\b(Bearer(?: |%20))(?=[^\s,]*\d)[A-Za-z0-9._~+/=-]{8,}")
_TOKEN: Final = re.compile(r"\b(hf_|sk-|ghp_|nvapi-|glpat-)[A-Za-z0-9_-]{8,}")


def variable(name: str, value: str) -> str:
    """An environment variable's value as it may be shown."""
    return HIDDEN if _is_secret(name) and value else _json(value)


def words(argv: Sequence[str]) -> Iterator[str]:
    """A command line's words as they may be shown."""
    secret = False
    for word in argv:
        if secret and not word.startswith("--"):
            yield HIDDEN  # the key's flag takes several
            continue
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield _json(word)
            continue
        hidden = _is_secret_flag(name)
        secret = hidden and not equals
        yield f"{name}={HIDDEN if hidden else _json(value)}" if equals else text(word)


def values(value: Any) -> Any:
    """What `json.loads` gave, as it may be shown: what is named as a secret is hidden, and each
    text is as `text` shows it.
    """
    if isinstance(value, dict):
        return {name: _named(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [values(each) for each in value]
    return text(value) if isinstance(value, str) else value


def text(said: str) -> str:
    """A text without passwords in URLs, what is named as a secret, and well-known tokens."""
    said = _NAMED.sub(_without_value, said)
    said = _IN_URL.sub(rf"\1:{HIDDEN}@", said)
    return _TOKEN.sub(rf"\1{HIDDEN}", _BEARER.sub(rf"\1{HIDDEN}", said))


def _is_secret(name: str) -> bool:
    words = re.sub(r"[.-]+", "_", name).upper()
    return bool(_SECRET_NAME.search(words) and not _NO_SECRET.search(words))


def _is_secret_flag(name: str) -> bool:
    """Also one that is short for a key's: vLLM takes the beginnings of flags."""
    flag = name.replace("_", "-")
    short = len(flag) > len("--") and any(key.startswith(flag) for key in VARIABLE_BY_FLAG)
    return short or _is_secret(name)


def _named(name: str, value: Any) -> Any:
    """What stands under a name. Neither null nor a yes or no is a secret."""
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return HIDDEN if plain and value != "" and _is_secret(name) else values(value)


def _json(value: str) -> str:
    """A value that may be JSON, as it is wherever there is nothing to hide."""
    if not value.startswith(("{", "[")):
        return text(value)
    try:
        parsed = json.loads(value)
        shown = values(parsed)
    except (ValueError, RecursionError):
        return text(value)
    return value if shown == parsed else json.dumps(shown)


def _without_value(found: re.Match[str]) -> str:
    if not _is_secret(found["name"]):
        return found[0]
    return f"{found['name']}{found['equals']}{found['quote']}{HIDDEN}{found['quote']}"
