"""Certificates and keys: tried before they are used, and what sockets need of them."""

import pathlib
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headway.config.model import EngineTls, Tls
from headway.config.problems import Problems
from headway.config.starting import Pools

if TYPE_CHECKING:
    from headway.config.lines import Path

_TOGETHER: Final = "cert and key can't be used together: {}; use PEM without a passphrase"


def server_tls(tls: Tls) -> ssl.SSLContext:
    """What a server needs to speak TLS. Raises ssl.SSLError or OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, tls.cert, tls.key)
    return context


def engine_tls(tls: EngineTls | None) -> ssl.SSLContext:
    """What the router needs to speak TLS with engines. Raises ssl.SSLError or OSError."""
    context = ssl.create_default_context(cafile=tls.ca if tls else None)
    if tls and tls.cert and tls.key:
        _load(context, tls.cert, tls.key)
    return context


def check_tls(tls: Tls, problems: Problems) -> None:
    """Add a problem if the certificate or its key can't be used."""
    at: Path = ("router", "tls")
    if _readable(at, {"cert": tls.cert, "key": tls.key}, problems):
        try:
            server_tls(tls)
        except (ssl.SSLError, OSError) as error:
            problems.add(at, _TOGETHER.format(error))


def check_engine_tls(pools: Pools, problems: Problems) -> None:
    """Add a problem for every pool whose files for engines can't be used."""
    for index, pool in pools:
        at: Path = ("pool", index, "tls")
        tls = pool.tls
        if tls is None or not _readable(at, tls.files(), problems):
            continue
        try:
            ssl.create_default_context(cafile=tls.ca)
        except (ssl.SSLError, OSError) as error:
            problems.add((*at, "ca"), f"{tls.ca} holds no certificates: {error}; use PEM")
            continue
        try:
            engine_tls(tls)
        except (ssl.SSLError, OSError) as error:
            problems.add(at, _TOGETHER.format(error))


def _readable(at: "Path", files: Mapping[str, pathlib.Path], problems: Problems) -> bool:
    """Whether all can be read; adds a problem for every other one."""
    readable = True
    for name, path in files.items():
        try:
            path.open("rb").close()
        except OSError as error:
            problems.add((*at, name), f"{path} can't be read: {error.strerror}")
            readable = False
    return readable


def _load(context: ssl.SSLContext, cert: pathlib.Path, key: pathlib.Path) -> None:
    # Without a function OpenSSL asks the terminal for a passphrase.
    context.load_cert_chain(cert, key, password=lambda: "")
