"""`init`, `up --dry-run` and `doctor` on machines whose GPUs a model fits, or doesn't."""

import tomllib

import pytest
from tests.fleet.plan.gpu_machine import h100s, machine_of, model_in
from tests.testing import model_configs as models
from tests.testing.nvidia import Card

from headway.config import ConfigError
from headway.core.errors import HeadwayError
from headway.fleet import up
from headway.fleet.doctor import doctor
from headway.models import hub


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Puts everything on a machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def put(machine):
        monkeypatch.setattr(up.hardware, "detect", lambda: machine)
        monkeypatch.setattr(hub, "fetch_sizes", lambda model, environ: None)
        monkeypatch.setattr(up.launch, "cpu_build", lambda: machine.cpu)
        monkeypatch.setattr(doctor.installation, "examine", lambda splits: iter(()))

    return put


@pytest.fixture
def llama_70b(tmp_path):
    folder = tmp_path / "70b"
    model = model_in(folder, models.LLAMA_70B, size_bytes=141_107_412_992)
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    return model


def written(path, model):
    said = []
    status = up.init(path, said.append, strategy=None, model=model, force=True)
    return status, path.read_text()


def test_init_writes_engines_that_fit_and_up_takes_them(on, tmp_path, llama_70b, capsys):
    on(h100s(8))
    file = tmp_path / "headway.toml"
    status, text = written(file, llama_70b)
    assert status == 0
    pools = tomllib.loads(text)["pool"]
    assert [(p["tensor_parallel_size"], p["replicas"]) for p in pools] == [(4, 1), (4, 1)]
    said = []
    assert up.up(up.UpWish(file), said.append, dry_run=True) == 0
    assert "--tensor-parallel-size 4" in capsys.readouterr().out
    assert [line.partition(":")[0] for line in said[1:]] == [
        "memory of prefill",
        "memory of decode",
    ]


def test_init_says_where_it_could_not_know_what_fits(on, tmp_path):
    said = []
    for machine in (h100s(8), machine_of(Card("GPU-a", shared=True))):
        on(machine)
        said.clear()
        up.init(tmp_path / "x.toml", said.append, strategy=None, model="org/model", force=True)
        assert any("isn't known here: engines have one GPU each" in line for line in said)


def test_a_file_that_can_not_fit_is_refused_before_anything_starts(on, tmp_path, llama_70b):
    on(h100s(8))
    file = tmp_path / "headway.toml"
    file.write_text(f'[[pool]]\nname = "all"\nrole = "both"\nreplicas = 8\nmodel = "{llama_70b}"\n')
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="use tensor_parallel_size = 4"):
            up.up(up.UpWish(file), print, dry_run=dry_run)
    lines = []
    assert doctor.run(str(file), lines.append) == 1
    assert any("error" in line and "tensor_parallel_size = 4" in line for line in lines)


def test_the_doctor_says_what_fits_and_what_was_not_checked(on, tmp_path, llama_70b):
    on(h100s(8))
    file = tmp_path / "headway.toml"
    written(file, llama_70b)
    lines = []
    doctor.run(str(file), lines.append)
    text = "\n".join(lines)
    assert "ok       memory of prefill: weights 32.9 GiB" in text
    assert "ok       8 GPUs: 8 x NVIDIA H100 80GB HBM3, 79 GiB" in text
    written(file, "org/model")
    lines.clear()
    doctor.run(str(file), lines.append)
    assert "note     memory of prefill: not checked" in "\n".join(lines)


def test_the_doctor_says_which_gpus_others_use(on, tmp_path, llama_70b):
    on(machine_of(*(Card(f"GPU-{index}", used_gib=40.0 * (index == 2)) for index in range(8))))
    file = tmp_path / "headway.toml"
    written(file, llama_70b)
    lines = []
    doctor.run(str(file), lines.append)
    [line] = [line for line in lines if "are free, and vLLM asks for" in line]
    assert line.strip() == ("warning  of GPU 2's 79.1 GiB 39.1 are free, and vLLM asks for 92%")


@pytest.mark.parametrize(
    ("cards", "why"),
    [
        ((), "GPU"),
        ((Card("GPU-a", parts=()),), "GPU 0 is in MIG mode and has no MIG device"),
    ],
)
def test_where_the_installed_vllm_needs_a_gpu_and_there_is_none_nothing_goes_well(
    on, tmp_path, cards, why
):
    on(machine_of(*cards))
    file = tmp_path / "headway.toml"
    with pytest.raises(HeadwayError, match=why):
        written(file, None)
    assert not file.exists()
    with pytest.raises(HeadwayError, match=why):
        up.up(up.UpWish(), print, dry_run=True)
    lines = []
    assert doctor.run(None, lines.append) == 1
    assert any("no GPU is visible" in line for line in lines)
