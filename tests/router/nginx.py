"""A real nginx in front of a router."""

import asyncio
import contextlib
import os
import pathlib
import shutil
import tempfile

from .raw_client import WAIT_S, Wire

_SET_UP = pathlib.Path(__file__).parents[2] / ".venv" / "nginx" / "nginx"
_FILE = """
daemon off;
master_process off;
pid {folder}/pid;
error_log stderr notice;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {http}
    server {{
        listen unix:{folder}/front{listen};
        location / {{ proxy_pass {upstream}; {location} }}
    }}
}}
"""


class Nginx:
    """`open` connects to it. tls: the context to connect with."""

    def __init__(self, folder, tls):
        self._folder = folder
        self._tls = tls

    async def open(self):
        name = "router" if self._tls else None
        path = f"{self._folder}/front"
        return Wire(*await asyncio.open_unix_connection(path, ssl=self._tls, server_hostname=name))


async def _listens(path):
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


@contextlib.asynccontextmanager
async def nginx(upstream, *, location="", http="", certificate=None, tls=None):
    """upstream: the router's URL. location, http: more of the configuration there.

    certificate: the folder that has its own, to speak TLS; tls: what its clients connect with.
    """
    binary = str(_SET_UP) if _SET_UP.exists() else shutil.which("nginx")
    assert binary, "no nginx here; `make test` sets one up (scripts/nginx.py)"
    listen = ""
    if certificate:
        listen = " ssl"
        http += (
            f"ssl_certificate {certificate}/cert.pem; ssl_certificate_key {certificate}/key.pem;"
        )
    # Not pytest's own folder: the name of a socket is short.
    with tempfile.TemporaryDirectory(prefix="nginx", dir="/tmp") as folder:
        text = _FILE.format(
            folder=folder, http=http, listen=listen, upstream=upstream, location=location
        )
        path = pathlib.Path(folder, "nginx.conf")
        path.write_text(text)  # noqa: ASYNC240 - a few bytes
        process = await asyncio.create_subprocess_exec(
            binary,
            *("-p", folder, "-c", str(path), "-e", "stderr"),
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        said = asyncio.create_task(process.stderr.read())
        try:
            async with asyncio.timeout(WAIT_S):
                while not await _listens(f"{folder}/front"):
                    assert not said.done(), said.result().decode()
                    await asyncio.sleep(0.01)
            yield Nginx(folder, tls)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await said
