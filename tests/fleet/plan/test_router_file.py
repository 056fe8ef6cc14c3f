"""The router's generated file means what the user's does."""

import dataclasses
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import config
from headway.config.model import Pool, Router
from headway.config.reading import form
from headway.fleet.plan import router_file
from headway.fleet.plan.spec import Address

DIGEST = config.hash_key("k" * 20)
RICH = f"""
[fleet]
drain_s = 3
[router]
host = "::1"
port = 0
receipt = false
strategy = "dedicated"
seed = 3
[router.slo]
ttft_s = 1e-7
[router.keys]
hashes = ["al:{DIGEST}"]
engine_key_env = "K"
[router.tls]
cert = "c \\u00e9\\U0001F600\\u007f\\".pem"
key = "k.pem"
[[pool]]
name = "a"
replicas = 2
model = "m"
max_prompt_tokens = 10
max_model_len = 100
flags = ["--x"]
env.A = "1"
batching.policy = "slo"
[[pool]]
name = "b"
engines = ["https://h:1", "http://[::1]:2"]
kv_lease_s = 31.5
[pool.tls]
ca = "ca.pem"
cert = "c.pem"
key = "k.pem"
"""


def addresses(parsed):
    started = [pool for pool in parsed.pools if not pool.engines]
    return {
        pool.name: [
            Address(host="127.0.0.1", port=9100 + 10 * index + each, side_port=1)
            for each in range(pool.replicas)
        ]
        for index, pool in enumerate(started)
    }


def check(parsed):
    where = addresses(parsed)
    back = config.parse(router_file.text(parsed, where), "/elsewhere/router.toml")
    assert back.router == parsed.router
    assert back.keys == parsed.keys
    assert [pool.name for pool in back.pools] == [pool.name for pool in parsed.pools]
    for own, theirs in zip(back.pools, parsed.pools, strict=True):
        urls = [str(url) for url in theirs.engines] or [a.url for a in where[own.name]]
        assert [str(url) for url in own.engines] == urls
        for name in ("role", "max_prompt_tokens", "max_model_len", "kv_lease_s"):
            assert getattr(own, name) == getattr(theirs, name)
        assert own == dataclasses.replace(
            Pool(name=own.name, engines=own.engines),
            role=theirs.role,
            max_prompt_tokens=theirs.max_prompt_tokens,
            max_model_len=theirs.max_model_len,
            kv_capacity_tokens=theirs.kv_capacity_tokens,
            kv_lease_s=theirs.kv_lease_s,
            tls=theirs.tls,
        ), "nothing about starting is left in the file"


def test_a_rich_file_keeps_its_meaning():
    check(config.parse(RICH, "/etc/headway.toml", starts=True))


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parsed = config.parse(RICH, "sub/headway.toml", starts=True)
    text = router_file.text(parsed, addresses(parsed))
    back = config.parse(text, "/elsewhere/router.toml")
    assert back.router.tls.key == tmp_path / "sub/k.pem"
    assert back.router.tls.cert.parent == tmp_path / "sub"
    assert back.pools[1].tls.ca == tmp_path / "sub/ca.pem"


def test_key_files_are_found_from_anywhere(tmp_path):
    (tmp_path / "keys.txt").write_text(f"al:{DIGEST}\n")
    file = tmp_path / "headway.toml"
    file.write_text('[router.keys]\nfile = "keys.txt"\n[[pool]]\nname = "a"\n')
    parsed = config.load(file, starts=True)
    generated = tmp_path / "state" / "router.toml"
    generated.parent.mkdir()
    generated.write_text(router_file.text(parsed, addresses(parsed)))
    back = config.load(generated)
    assert back.keys == parsed.keys
    assert back.router.keys.file == tmp_path / "keys.txt"


def values(setting):
    """Values that a setting may have, by the schema of its check; its default among them."""
    schema = setting.check.schema()
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = {
        "integer": lambda: st.integers(schema["minimum"], schema["maximum"]),
        "boolean": st.booleans,
        "number": lambda: st.floats(
            0, schema["maximum"], exclude_min="minimum" not in schema, allow_subnormal=False
        ),
    }
    if schema.get("maxItems") == 2:
        item = {**schema["items"], "maximum": min(schema["items"]["maximum"], 2**62)}
        low, high = item.get("minimum", 0.5), item["maximum"]
        return st.sampled_from([setting.default, (low, high), (type(low)(1), type(low)(1))])
    make = kinds.get(schema.get("type"))
    return make() if make else st.just(setting.default)


@st.composite
def routers(draw):
    def filled(cls):
        settings, sections, named = form(cls)
        given = {s.name: draw(values(s)) for s in settings if draw(st.booleans())}
        inner = {name: filled(kind) for name, kind in sections.items() if name != "tls"}
        for name, each in named.items():
            names = draw(st.sets(st.sampled_from(["*", "alice", "team.a"])))
            inner[name] = {own: filled(each.cls) for own in names}
        return cls(**given, **inner)

    router = filled(Router)
    clients = {
        name: dataclasses.replace(each, default_priority=(each.priority or (7, 7))[1])
        for name, each in router.clients.items()
    }
    times = router.timeouts
    longest = max(times.total_s, times.first_byte_s)
    return dataclasses.replace(
        router,
        strategy="unified",
        clients=clients,
        port=8000,
        admin_port=9001,
        max_bodies_bytes=max(router.bodies_bytes, router.max_body_bytes),
        timeouts=dataclasses.replace(times, total_s=longest),
    )


@given(routers())
def test_any_router_keeps_its_meaning(router):
    parsed = dataclasses.replace(config.parse('[[pool]]\nname = "a"\n', starts=True), router=router)
    check(parsed)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map("/".__add__))
def test_any_path_is_written_so_that_it_is_read_again(path):
    name = path.replace("\0", "")
    parsed = config.parse('[[pool]]\nname = "a"\n', starts=True)
    tls = config.Tls(cert=pathlib.Path(name), key=pathlib.Path(name))
    parsed = dataclasses.replace(parsed, router=dataclasses.replace(parsed.router, tls=tls))
    back = config.parse(router_file.text(parsed, addresses(parsed)), "r.toml")
    assert back.router.tls == tls


def test_an_engine_whose_address_is_not_known_is_a_mistake():
    parsed = config.parse('[[pool]]\nname = "a"\n', starts=True)
    with pytest.raises(KeyError):
        router_file.text(parsed, {})
