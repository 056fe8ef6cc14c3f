"""`headway.toml`: the settings of the router and the fleet, parsed strictly and told in words.

What can't be used is a `ConfigError` that lists all problems, each with its file, line and key,
what was wrong and what would be right.
"""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from headway.config.changes import waiting
from headway.config.checks import EngineAddress
from headway.config.clients import EVERYONE, ClientSettings
from headway.config.explain import explain, told_clients
from headway.config.fleet import Batching, Fleet
from headway.config.keys import KeyHash, KeyRing, engine_key, hash_key, read_file, repeated
from headway.config.lines import Path, key_lines
from headway.config.model import (
    Config,
    EngineTls,
    Health,
    Keys,
    Pool,
    Retries,
    Router,
    SloSettings,
    TimeoutSettings,
    Tls,
)
from headway.config.problems import (
    ConfigError,
    FileSource,
    FlagSource,
    Problem,
    Problems,
    Source,
    flag_of,
)
from headway.config.reading import all_settings, section, unknown
from headway.config.rules import check, warnings
from headway.config.schema import schema, schema_text
from headway.config.tls import check_engine_tls, check_tls, engine_tls, server_tls
from headway.core.routing.strategies import DEFAULT_STRATEGY, SPLIT_STRATEGY
from headway.home import expanded

__all__ = [
    "EVERYONE",
    "Batching",
    "ClientSettings",
    "Config",
    "ConfigError",
    "EngineAddress",
    "EngineTls",
    "Fleet",
    "Health",
    "KeyRing",
    "Keys",
    "Pool",
    "Problem",
    "Retries",
    "Router",
    "SloSettings",
    "TimeoutSettings",
    "Tls",
    "all_settings",
    "engine_key",
    "engine_tls",
    "explain",
    "flag_of",
    "from_flags",
    "hash_key",
    "load",
    "parse",
    "schema",
    "schema_text",
    "server_tls",
    "told_clients",
    "waiting",
    "warnings",
]


def load(path: str | pathlib.Path, *, starts: bool = False) -> Config:
    """The configuration in a file, with the files it names read and checked too.

    starts: for `headway up`, which starts the engines of pools that have none. Without it such a
        pool is an error.

    Raises ConfigError, also when a file can't be read.
    """
    path = pathlib.Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        said = f"can't be read: {error.strerror}"
        raise ConfigError((Problem("", said, str(path)),)) from error
    except UnicodeDecodeError as error:
        raise ConfigError((Problem("", "is not UTF-8 text", str(path)),)) from error
    return _parsed(text, str(path), open_files=True, starts=starts)


def parse(text: str, name: str = "headway.toml", *, starts: bool = False) -> Config:
    """The configuration in a text. Opens no files: a key file's keys are not known,
    and if it is all there is, no key is taken.

    name: of the file the text is from, for errors; relative paths in it start at its folder.
    starts: as for `load`.

    Raises ConfigError.
    """
    return _parsed(text, name, open_files=False, starts=starts)


def from_flags(
    *,
    engines: Sequence[str] = (),
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    router: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration for a command line.

    engines, prefill, decode: URLs of the engines of each role, one pool a role. With `prefill`
        or `decode` the strategy is one that splits unless `router` says otherwise.
    router: what the file would have in [router], nested likewise; relative paths start at the
        working directory.

    Raises ConfigError; keys in it are flags: --engine, --prefill, --decode and `flag_of`.
    """
    given = {"engine": engines, "prefill": prefill, "decode": decode}
    roles = [name for name, urls in given.items() if urls]
    pools = [
        {"name": "engines", "role": "both", "engines": list(engines)}
        if name == "engine"
        else {"name": name, "role": name, "engines": list(given[name])}
        for name in roles
    ]
    settings = dict(router or {})
    source = FlagSource(tuple(f"--{name}" for name in roles), frozenset(_paths(settings)))
    split = bool(prefill or decode)
    if split and not (prefill and decode):
        absent, present = ("--decode", "--prefill") if prefill else ("--prefill", "--decode")
        said = f"is missing; {present} engines need at least one {absent} engine"
        raise ConfigError((Problem(absent, said),))
    settings.setdefault("strategy", SPLIT_STRATEGY if split else DEFAULT_STRATEGY)
    document = {"router": settings, "pool": pools}
    return _built(document, source, pathlib.Path(), open_files=True, starts=False)


def _paths(settings: Mapping[str, Any], at: Path = ("router",)) -> list[Path]:
    paths: list[Path] = []
    for name, value in settings.items():
        paths.append((*at, name))
        if isinstance(value, Mapping):
            paths += _paths(value, (*at, name))
    return paths


def _parsed(text: str, name: str, *, open_files: bool, starts: bool) -> Config:
    try:
        document = tomllib.loads(text)
        lines = key_lines(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError.of_syntax(error, name, text) from error
    path = pathlib.Path(name)
    source = FileSource(name, lines)
    config = _built(document, source, path.parent, open_files=open_files, starts=starts)
    return dataclasses.replace(config, files=(path, *config.files))


def _built(
    document: dict[str, Any],
    source: Source,
    folder: pathlib.Path,
    *,
    open_files: bool,
    starts: bool,
) -> Config:
    problems = Problems(source)
    unknown(document, ["fleet", "router", "pool"], (), problems)
    router = section(Router, document.get("router", {}), ("router",), problems) or Router()
    router = _placed(router, folder)
    fleet = section(Fleet, document.get("fleet", {}), ("fleet",), problems) or Fleet()
    pools = [
        (index, _pool_placed(pool, folder))
        for index, pool in _pools(document.get("pool", []), problems)
    ]
    check(router, pools, problems, starts=starts)
    keys = _key_ring(router.keys, problems, open_files=open_files)
    if open_files:
        if router.tls:
            check_tls(router.tls, problems)
        check_engine_tls(pools, problems)
    if open_files and router.tokenizer and not router.tokenizer.is_file():
        problems.add(("router", "tokenizer"), f"{router.tokenizer} is not a file")
    problems.finish()
    tls = [router.tls.cert, router.tls.key] if router.tls else []
    tls += [path for _, pool in pools if pool.tls for path in pool.tls.files().values()]
    return Config(
        router=router,
        pools=tuple(pool for _, pool in pools),
        fleet=fleet,
        keys=keys,
        files=tuple(path for path in (router.keys.file, *tls, router.tokenizer) if path),
        source=source,
    )


def _pools(raw: object, problems: Problems) -> list[tuple[int, Pool]]:
    if not isinstance(raw, list):
        problems.add(("pool",), "is not a list; write [[pool]], in double brackets, for each pool")
        return []
    read = [section(Pool, each, ("pool", index), problems) for index, each in enumerate(raw)]
    return [(index, pool) for index, pool in enumerate(read) if pool is not None]


def _placed(router: Router, folder: pathlib.Path) -> Router:
    """With relative paths put below the folder."""
    tls, keys = router.tls, router.keys
    if tls:
        tls = dataclasses.replace(tls, cert=folder / tls.cert, key=folder / tls.key)
    if keys.file:
        keys = dataclasses.replace(keys, file=folder / keys.file)
    tokenizer = folder / router.tokenizer if router.tokenizer else None
    return dataclasses.replace(router, tls=tls, keys=keys, tokenizer=tokenizer)


def _pool_placed(pool: Pool, folder: pathlib.Path) -> Pool:
    """With relative paths put below the folder."""
    tls = pool.tls
    if tls:
        tls = EngineTls(**{name: folder / path for name, path in tls.files().items()})
    return dataclasses.replace(pool, model=_model(pool.model, folder), tls=tls)


def _model(model: str | None, folder: pathlib.Path) -> str | None:
    """With a path that says it is one put below the folder; a hub name may have a slash too."""
    if model is not None and model.split("/")[0] in {".", ".."}:
        return str(folder.absolute() / model)
    return str(expanded(model)) if model and model.startswith("~/") else model


def _key_ring(keys: Keys, problems: Problems, *, open_files: bool) -> KeyRing:
    entries: list[KeyHash] = list(keys.hashes)
    at: Path = ("router", "keys", "file")
    if keys.file and open_files:
        try:
            more, found = read_file(keys.file)
        except OSError as error:
            problems.add(at, f"{keys.file} can't be read: {error.strerror}")
        else:
            entries += more
            for problem in found:
                problems.add_from(at, problem)
    twice = repeated(entries)
    if twice:
        problems.add(at[:2], f"the same key is there more than once: {', '.join(twice)}")
    return KeyRing(entries, asked=keys.file is not None)
