"""What may be shown of environments and command lines: passwords, keys and tokens may not."""

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
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|(?:^|_)(?:AUTH|COOKIE|PAT)(?:_|$)"
    r"|(?:API|ACCESS|ACCOUNT|ENGINE|LICENSE|ENCRYPTION|SAS|STORAGE)_?KEYS?(?:_|$)|(?:^|_)KEY$",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(r"TOKENS|TOKEN_(?:BUDGET|LIMIT|PATH|FILE)|_(?:FILE|PATH|DIR)$")
_IN_URL: Final = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
_TOKEN: Final = re.compile(r"\b(hf_|sk-|ghp_|nvapi-|glpat-)[A-Za-z0-9_-]{8,}")


def variable(name: str, value: str) -> str:
    """An environment variable's value as it may be shown."""
    secret = _SECRET_NAME.search(name) and not _NO_SECRET.search(name.upper())
    return HIDDEN if secret and value else text(value)


def words(argv: Sequence[str]) -> Iterator[str]:
    """A command line's words as they may be shown."""
    secret = False
    for word in argv:
        name, equals, _ = word.partition("=")
        flag = name.replace("_", "-")
        if secret and not word.startswith("--"):
            yield HIDDEN  # the key's flag takes several
            continue
        secret = flag in VARIABLE_BY_FLAG and not equals
        yield f"{name}={HIDDEN}" if flag in VARIABLE_BY_FLAG and equals else text(word)


def values(value: Any) -> Any:
    """What `json.loads` gave, as it may be shown: each of its texts as `text` shows it."""
    if isinstance(value, dict):
        return {name: values(each) for name, each in value.items()}
    if isinstance(value, list):
        return [values(each) for each in value]
    return text(value) if isinstance(value, str) else value


def text(said: str) -> str:
    """A text without passwords in URLs and without what looks like a well-known token."""
    return _TOKEN.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1:{HIDDEN}@", said))
