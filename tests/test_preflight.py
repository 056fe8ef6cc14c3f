"""The preflight names what is missing, one line each, and how to get it."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parent.parent / "scripts"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


preflight = load("preflight")
GOOD = preflight.Machine(
    system="Linux",
    arch="x86_64",
    python=(3, 11, 4),
    glibc=(2, 31),
    cpu_flags={"avx2"},
    has_venv=True,
    compiler="/usr/bin/g++",
    free_bytes=10**10,
)


def test_a_good_machine_has_no_problems():
    for kind in ("cpu", "dev"):
        assert preflight.problems(GOOD, kind) == []
        assert preflight.notes(GOOD, kind) == []


@pytest.mark.parametrize(
    ("lack", "says"),
    [
        ({"python": (3, 10, 12)}, "Python 3.10.12 is too old"),
        ({"has_venv": False}, "python3.11-venv"),
        ({"free_bytes": 10**9}, "1.0 GB of disk are free here and 6.0 GB are needed"),
        ({"system": "Darwin"}, "Linux on x86-64 or aarch64"),
        ({"arch": "ppc64le"}, "Linux on x86-64 or aarch64"),
        ({"glibc": None}, "another C library"),
        ({"glibc": (2, 17)}, "glibc 2.28 or newer"),
        ({"cpu_flags": {"sse4_2"}}, "AVX2"),
    ],
)
def test_each_lack_is_one_line_that_says_what_to_do(lack, says):
    (line,) = preflight.problems(GOOD._replace(**lack), "cpu")
    assert says in line
    assert "\n" not in line


def test_the_tools_alone_install_on_any_platform():
    elsewhere = GOOD._replace(system="Darwin", arch="arm64", glibc=None, free_bytes=10**9)
    assert preflight.problems(elsewhere, "dev") == []


def test_a_missing_compiler_is_no_obstacle_but_worth_a_note():
    machine = GOOD._replace(compiler=None)
    assert preflight.problems(machine, "cpu") == []
    (line,) = preflight.notes(machine, "cpu")
    assert "--enforce-eager" in line


def test_this_machine_can_be_described():
    machine = preflight.this_machine(".")
    assert machine.python >= (3, 11)
    assert machine.free_bytes > 0


@pytest.fixture
def install(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = load("install")
    module.VENV = tmp_path / "venv"
    return module


def fake_pip(monkeypatch, install, script):
    """pip answers each call with the next (status, stderr); returns the calls made."""
    calls = []
    answers = iter(script)

    def pip(arguments, **_):
        calls.append(arguments)
        return next(answers)

    monkeypatch.setattr(install, "pip", pip)
    return calls


def lock_with_torch(tmp_path):
    lock = tmp_path / "cpu.lock"
    lock.write_text("tqdm==4.0\ntorch==2.13.0+cpu\n")
    return lock


NOT_FOUND = (1, "ERROR: No matching distribution found for torch==2.13.0+cpu\n")


def test_torch_comes_from_pips_indexes_or_else_from_pytorchs(install, monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    calls = fake_pip(monkeypatch, install, [NOT_FOUND, (0, "")])
    install.install_torch(lock_with_torch(tmp_path))
    assert calls == [
        ["torch==2.13.0+cpu"],
        ["--index-url", install.PYTORCH_CPU_INDEX, "torch==2.13.0+cpu"],
    ]


def test_an_index_named_for_torch_is_the_only_one_asked(install, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_INDEX", "https://example.org/simple")
    calls = fake_pip(monkeypatch, install, [NOT_FOUND])
    with pytest.raises(install.InstallError, match="make serve TORCH_INDEX="):
        install.install_torch(lock_with_torch(tmp_path))
    assert calls == [["--index-url", "https://example.org/simple", "torch==2.13.0+cpu"]]


def test_a_full_disk_is_named(install, monkeypatch):
    fake_pip(monkeypatch, install, [(1, "ERROR: [Errno 28] No space left on device\n")])
    with pytest.raises(install.InstallError, match="the disk is full"):
        install.pip_or_raise(["x"], "installing x")


def test_an_interrupted_installation_starts_again_from_an_empty_environment(
    install, monkeypatch, tmp_path
):
    half = tmp_path / "venv/lib/half-installed"
    half.mkdir(parents=True)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(install, "pip", interrupted)
    assert install.main("dev") == 130
    assert (tmp_path / "venv/.installing").exists()
    assert not (tmp_path / "venv/.ready-dev").exists()

    fake_pip(monkeypatch, install, [(0, ""), (0, "")])
    assert install.main("dev") == 0
    assert not half.exists()
    assert not (tmp_path / "venv/.installing").exists()
    assert (tmp_path / "venv/.ready-dev").exists()


def test_a_failed_installation_is_not_marked_as_ready(install, monkeypatch, tmp_path):
    fake_pip(monkeypatch, install, [(1, "ERROR: no network\n")])
    assert install.main("dev") == 1
    assert not (tmp_path / "venv/.ready-dev").exists()
