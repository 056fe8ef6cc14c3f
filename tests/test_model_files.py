"""What a model's files say, on this machine and on a hub."""

import hashlib
import http.server
import json
import threading

import pytest

from headway.models import hub as models_hub
from headway.models.files import model_files
from headway.models.hub import fetch_sizes

CONFIG = {"num_hidden_layers": 2}
INDEX = {"metadata": {"total_size": 7}, "weight_map": {}}
FILES = {"config.json": CONFIG, "model.safetensors.index.json": INDEX}


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one model."""

    def do_GET(self):
        self.server.asked.append(self.path)
        owner, name, _, _, file = self.path.strip("/").split("/")
        found = (owner, name) == ("org", "model") and file in FILES
        body = json.dumps(FILES[file]).encode() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("etag", f'"{hashlib.sha1(body).hexdigest()}"')  # noqa: S324  as git has it
        self.send_header("x-repo-commit", "a" * 40)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    """The hub's environment, and the paths it was asked for."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environ = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "0",
    }
    yield environ, server.asked
    server.shutdown()
    server.server_close()


@pytest.mark.process
def test_what_a_hub_says_of_sizes_is_fetched_and_found(hub):
    pytest.importorskip("huggingface_hub")
    environ, _ = hub
    assert model_files("org/model", environ) is None
    fetch_sizes("org/model", environ)
    assert model_files("org/model", environ) == (CONFIG, 7)


@pytest.mark.parametrize(("offline", "asks"), [("0", 1), ("1", 0)])
def test_the_hub_is_asked_where_nothing_is_here(monkeypatch, tmp_path, offline, asks):
    def fetch(model, environ):
        folder = tmp_path / "models--org--model" / "snapshots" / "main"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))

    monkeypatch.setattr(models_hub, "fetch_sizes", fetch)
    environ, said = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": offline}, []
    for _ in range(2):
        found = models_hub.asked_files("org/model", environ, said.append)
        assert found == ((CONFIG, None) if asks else None)
    assert said == ["asking the hub how large org/model is"] * asks
    assert models_hub.asked_files("./none", environ, said.append) is None
    assert len(said) == asks


@pytest.mark.process
def test_a_hub_that_has_no_such_model_says_nothing(hub):
    pytest.importorskip("huggingface_hub")
    environ, _ = hub
    fetch_sizes("org/other", environ)
    assert model_files("org/other", environ) is None


@pytest.mark.parametrize("model", ["./there", "/there", "~/x", "s3://a/b", "x.gguf", "a/b/c"])
def test_what_is_no_hubs_name_is_not_asked_for(hub, model):
    environ, asked = hub
    fetch_sizes(model, environ)
    assert not asked


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE"])
def test_a_hub_that_may_not_be_asked_is_not(hub, name):
    environ, asked = hub
    fetch_sizes("org/model", environ | {name: "1"})
    assert not asked


def test_a_revision_is_looked_up_by_its_name(tmp_path):
    home = tmp_path / "models--org--model"
    for commit, layers in (("aa", 1), ("bb", 2)):
        folder = home / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("aa\n")
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert model_files("org/model", environ).config == {"num_hidden_layers": 1}
    second = model_files("org/model", environ, revision="bb")
    assert second.config == {"num_hidden_layers": 2}
    assert second.weights_bytes is None, "files may be missing"
    assert model_files("org/model", environ, revision="cc") is None


@pytest.mark.parametrize("content", ["{", "[]", "3", ""])
def test_a_configuration_that_can_not_be_read_is_none(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert model_files(str(tmp_path), {}) is None


def test_weights_of_pytorch_count_where_there_are_no_others(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert model_files(str(tmp_path), {}) == ({}, None)
    (tmp_path / "pytorch_model.bin").write_bytes(b"12345")
    assert model_files(str(tmp_path), {}) == ({}, 5)
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert model_files(str(tmp_path), {}) == ({}, 3)
