"""Takes a changed configuration while the router runs."""

import asyncio
import os
import pathlib
import ssl
from collections.abc import Callable, Iterable
from typing import Final

from headway import config as settings
from headway.core.errors import HeadwayError
from headway.router.state.service import Service

LOOK_S: Final = 1.0
"""How often the configuration's files are looked at."""

Stamps = dict[pathlib.Path, tuple[int, ...]]
"""For each file what changes when it does."""


class Reload:
    """Reads the configuration again on a signal or when its files have changed.

    A bad one changes nothing; streams go on in either case.
    """

    def __init__(
        self,
        config: settings.Config,
        read: Callable[[], settings.Config] | None,
        say: Callable[[str], None],
        service: Service,
        tls: ssl.SSLContext | None,
    ) -> None:
        """read: reads the configuration again; None if it isn't in a file."""
        self._start = config
        self._config = config
        self._read = read
        self._say = say
        self._service = service
        self._tls = tls
        self._seen = _stamps(config.files)

    async def watch(self) -> None:
        """Look at the files for ever. One that is still being written is left for the next look."""
        before = self._seen
        while True:
            await asyncio.sleep(LOOK_S)
            stamps = _stamps(self._config.files)
            if stamps == before and stamps != self._seen:
                self.now("changed file")
            before = _stamps(self._config.files)

    def now(self, why: str) -> None:
        """Read and use the configuration. why: for whoever reads what is said."""
        if self._read is None:
            self._say(f"{why}: there is no file to read again")
            return
        self._seen = stamps = _stamps(self._config.files)
        try:
            new = self._read()
            settings.engine_key(new.router.keys.engine_key_env, os.environ)
            if self._tls is not None and new.router.tls is not None:
                tls = new.router.tls
                self._tls.load_cert_chain(tls.cert, tls.key, password=lambda: "")
            self._service.apply(new)
            self._service.start()
        except (HeadwayError, OSError) as error:
            self._say(f"{why}: the settings stay as they are:\n{error}")
            return
        old, self._config = self._config, new
        self._seen = _stamps(new.files) | {p: s for p, s in stamps.items() if p in new.files}
        for warning in settings.warnings(new):
            self._say(f"warning: {warning}")
        if new.router.clients != old.router.clients:
            for line in settings.told_clients(new.router):
                self._say(line)
        waiting = settings.waiting(self._start, new)
        for each in waiting:
            self._say(f"{why}: {each}, until the router is restarted")
        self._say(f"{why}: {'all other ' if waiting else ''}settings applied")


def _stamps(files: Iterable[pathlib.Path]) -> Stamps:
    return {path: _stamp(path) for path in files}


def _stamp(path: pathlib.Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
