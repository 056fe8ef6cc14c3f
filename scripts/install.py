"""`python scripts/install.py cpu|dev|ray`: fill .venv from requirements/, once.

cpu: vLLM's CPU build and what the bundled model needs, about 3.5 GB. dev: the test and lint tools.
Both install headway itself, editable. ray: Ray, into .venv/ray and so out of the way of vLLM, which
would import it in every process; tests of Ray clusters look there. Versions are pinned and
installed without resolving, so that every machine gets the same set.

A run that is interrupted leaves a mark, and the next one starts with an empty environment;
what was downloaded comes from pip's cache. A finished run leaves `.venv/.ready-KIND`.

Environment: TORCH_INDEX, the package index that has PyTorch's CPU wheels. By default pip's own
indexes are asked first and PyTorch's next.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import preflight

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class InstallError(Exception):
    """The installation can't go on; the message says what to do."""


def main(kind: str) -> int:
    """Install `kind`; 0, or 1 after a line that says what to do."""
    try:
        check_machine(kind)
        make_venv()
        install(kind)
    except InstallError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command starts the installation again")
        return 130
    return 0


def check_machine(kind: str) -> None:
    """Raise InstallError where this machine can't take the installation."""
    machine = preflight.this_machine(ROOT)
    if any(VENV.glob("lib/*/site-packages/torch")):
        # Most of the space is taken already; what is missing shows when pip writes.
        machine = machine._replace(free_bytes=preflight.INSTALL_BYTES[kind])
    found = preflight.problems(machine, kind)
    for line in found[:-1]:
        say(f"error: {line}")
    if found:
        raise InstallError(found[-1])
    for line in preflight.notes(machine, kind):
        say(f"note: {line}")


def make_venv() -> None:
    """A virtual environment that works: what is there, or a new one."""
    if _mark().exists():
        say("an earlier installation was interrupted; starting again from an empty .venv")
    elif _python().exists() and _succeeds([str(_python()), "-m", "pip", "--version"]):
        return
    else:
        say(f"creating .venv with {sys.executable}")
    shutil.rmtree(VENV, ignore_errors=True)
    if subprocess.call([sys.executable, "-m", "venv", str(VENV)]) != 0:
        raise InstallError("cannot create .venv; the lines above say why")


def install(kind: str) -> None:
    """Install the lock file of `kind` and headway; leave the mark of success."""
    ready = VENV / f".ready-{kind}"
    if ready.exists():
        ready.unlink()
    lock = ROOT / "requirements" / f"{kind}.lock"
    _mark().write_text(kind + "\n")
    if kind == "cpu":
        say("1/3 installing PyTorch for CPUs")
        install_torch(lock)
        say("2/3 installing vLLM and the rest of requirements/cpu.lock (minutes the first time)")
    if kind == "ray":
        shutil.rmtree(VENV / "ray", ignore_errors=True)
        aside = ["--target", str(VENV / "ray")]
        pip_or_raise([*aside, "-r", str(lock)], f"installing {lock.name}")
        _mark().rename(ready)
        return
    pip_or_raise(["-r", str(lock)], f"installing {lock.name}")
    say("3/3 installing headway" if kind == "cpu" else "installing headway")
    pip_or_raise(["--no-build-isolation", "-e", str(ROOT)], "installing headway")
    _mark().rename(ready)


def install_torch(lock: Path) -> None:
    """Install the torch that `lock` pins, from the index that has it."""
    lines = lock.read_text().splitlines()
    torch = next(line for line in lines if line.startswith("torch=="))
    index = os.environ.get("TORCH_INDEX")
    if index:
        status, _ = pip(["--index-url", index, torch])
    else:
        status, errors = pip([torch], hide_errors=True)
        if status and "No matching distribution found" in errors:
            say(f"pip's indexes have no {torch}; asking {PYTORCH_CPU_INDEX}")
            status, _ = pip(["--index-url", PYTORCH_CPU_INDEX, torch])
        elif status:
            sys.stderr.write(errors)
    if status:
        raise InstallError(
            f"cannot install {torch} from {index or 'the indexes of pip and PyTorch'}; check the "
            "network, or name an index that has PyTorch's CPU wheels: make serve "
            f"TORCH_INDEX={PYTORCH_CPU_INDEX}"
        )


def pip_or_raise(arguments: list[str], doing: str) -> None:
    """Run pip install; raise InstallError with the reason where it is a known one."""
    status, errors = pip(arguments)
    if status == 0:
        return
    if "No space left on device" in errors:
        needed = preflight.INSTALL_BYTES["cpu"] / 1e9
        raise InstallError(f"the disk is full; free {needed:.0f} GB and run the same command again")
    raise InstallError(
        f"{doing} failed, pip's lines above say why; run the same command again to continue"
    )


def pip(arguments: list[str], *, hide_errors: bool = False) -> tuple[int, str]:
    """`pip install --no-deps` with its progress shown: exit status and what it said on stderr."""
    command = [str(_python()), "-m", "pip", "install", "--no-deps", "--disable-pip-version-check"]
    process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE)
    lines: list[str] = []

    def collect() -> None:
        for raw in process.stderr or ():
            lines.append(raw.decode(errors="replace"))
            if not hide_errors:
                sys.stderr.write(lines[-1])
                sys.stderr.flush()

    reader = threading.Thread(target=collect)
    reader.start()
    status = process.wait()
    reader.join()
    return status, "".join(lines)


def _succeeds(command: list[str]) -> bool:
    sink = subprocess.DEVNULL
    return subprocess.call(command, stdout=sink, stderr=sink) == 0


def _python() -> Path:
    return VENV / "bin" / "python"


def _mark() -> Path:
    return VENV / ".installing"


def say(line: str) -> None:
    """Tell the user, on standard error."""
    sys.stderr.write(f"headway: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    if sys.argv[1:] not in (["cpu"], ["dev"], ["ray"]):
        sys.exit("usage: python scripts/install.py cpu|dev|ray")
    sys.exit(main(sys.argv[1]))
