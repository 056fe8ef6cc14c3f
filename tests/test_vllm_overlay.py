"""The scheduler's tests find another vLLM, whole, or say why not."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

from headway.engine.compat import SUPPORTED

SCRIPT = Path(__file__).parent.parent / "scripts" / "test_vllm.py"
FILES = {
    "vllm/__init__.py": "x = 1",
    "vllm/v1/core.py": "",
    "vllm/_C.abi3.so": "compiled",
    "vllm-9.9.1.dist-info/METADATA": "Name: vllm",
    "vllm-9.9.1.data/purelib/odd.py": "",
}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("test_vllm_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def downloads(script, monkeypatch):
    """What was downloaded: a wheel with these files each time."""
    asked = []

    def download(release, folder):
        asked.append(release)
        wheel = folder / "vllm-9.9.1-cp38-abi3-manylinux_2_28_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in FILES.items():
                archive.writestr(name, text)
        return wheel

    monkeypatch.setattr(script, "download", download)
    return asked


def test_python_files_are_kept_and_count_as_a_cpu_build(script, downloads, tmp_path):
    folder = script.overlay("9.9", tmp_path)
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert kept == {"vllm/__init__.py", "vllm/v1/core.py", "vllm-9.9.1.dist-info/METADATA"}
    assert "Version: 9.9.1+cpu\n" in (folder / "vllm-9.9.1.dist-info" / "METADATA").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["9.9"]


def test_a_release_is_downloaded_once(script, downloads, tmp_path):
    assert script.overlay("9.9", tmp_path) == script.overlay("9.9", tmp_path)
    assert downloads == ["9.9"]


def test_what_stopped_half_way_is_no_release(script, downloads, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(script, "unpack", stop)
        with pytest.raises(KeyboardInterrupt):
            script.overlay("9.9", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert (script.overlay("9.9", tmp_path) / "vllm" / "__init__.py").exists()


@pytest.mark.parametrize("name", ["../../etc", "--index-url=x", "", "latest", "0.33;x"])
def test_what_is_no_release_is_not_asked_for(script, downloads, tmp_path, name):
    with pytest.raises(script.OverlayError, match=r"VLLM=0\.33\.0"):
        script.overlay(name, tmp_path)
    assert downloads == []


@pytest.mark.parametrize("version", ["0.1.0", f"{SUPPORTED[0]}.1", f"{SUPPORTED[-1]}.0+cpu"])
def test_all_supported_releases_are_tested_but_the_installed_one(script, monkeypatch, version):
    monkeypatch.setattr(script.importlib.metadata, "version", lambda name: version)
    tested = script.missing()
    assert set(tested) == {each for each in SUPPORTED if not version.startswith(f"{each}.")}


def test_tests_see_the_release_first(script, downloads, tmp_path, monkeypatch):
    folder, seen = script.overlay("9.9", tmp_path), {}
    monkeypatch.setattr(script.subprocess, "call", lambda command, **options: seen.update(options))
    monkeypatch.setenv("PYTHONPATH", "/mine")
    script.run(folder)
    assert seen["env"]["PYTHONPATH"] == f"{folder}:/mine"
    assert seen["env"][script.EXPECTED] == "9.9.1"
