"""`python scripts/nginx.py`: an nginx for the tests, at .venv/nginx/nginx.

The machine's own if there is one, or else Debian's or Ubuntu's package, unpacked there and not
installed: that needs no root, and no server is started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".venv" / "nginx"
_ALSO = "/usr/local/sbin:/usr/sbin:/sbin"  # often missing from a user's PATH
_PACKAGES = ("nginx", "nginx-core")
"""Which of them has the program depends on the release."""


def main() -> int:
    """Put it there; 0, or 1 after a line that says what to do."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{_ALSO}") or _unpacked()
    if found is None or not _succeeds([found, "-v"]):
        sys.stderr.write(
            "headway: error: the router's tests need nginx, and its package can't be fetched "
            "here; install it (apt-get, dnf or brew install nginx) and run the same command again\n"
        )
        return 1
    (PLACE / "nginx").symlink_to(found)
    return 0


def _unpacked() -> str | None:
    """The program out of its package; None where apt can't get it."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    program = PLACE / "package" / "usr" / "sbin" / "nginx"
    with tempfile.TemporaryDirectory() as folder:
        for name in _PACKAGES:
            download = ["apt-get", "-qq", "download", name]
            # A new machine has no lists of packages yet.
            if _succeeds(download, folder) or (
                _succeeds(["apt-get", "-qq", "update"]) and _succeeds(download, folder)
            ):
                for package in Path(folder).glob(f"{name}_*.deb"):
                    _succeeds(["dpkg-deb", "-x", str(package), str(PLACE / "package")])
            if program.exists():
                return str(program)
    return None


def _succeeds(command: list[str], folder: str | None = None) -> bool:
    return subprocess.call(command, cwd=folder, stderr=subprocess.DEVNULL) == 0


if __name__ == "__main__":
    sys.exit(main())
