"""Web pages that may use the router, and those that may not."""

import hashlib
import inspect

import pytest
from tests.router.rules import config_of, engines, flags, on_loop, routing
from tests.testing.vllm_answers import EVENTS, JSON, body_for

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example.com"
OTHER = "https://evil.example.com"
KEY = "secret"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def config(engine, origins):
    key = hashlib.sha256(KEY.encode()).hexdigest()
    lines = [
        "[router]",
        f"allowed_origins = {origins}" if origins else "",
        f'keys = {{ hashes = ["page:{key}"] }}',
        "health = { interval_s = 0.05, passes = 1 }",
        "[[pool]]",
        'name = "a"',
        f'engines = ["{engine.url}"]',
    ]
    return config_of("\n".join(lines))


def browsing(origins):
    """Runs a test with an engine and a client of a router that allows these origins."""

    def wrap(test):
        @on_loop
        async def run(*args, **kwargs):
            async with (
                engines() as [engine],
                routing(config(engine, origins)) as router,
                router.client() as client,
            ):
                await test(engine, client, *args, **kwargs)

        given = list(inspect.signature(test).parameters.values())[2:]
        run.__signature__ = inspect.Signature(given)
        return run

    return wrap


@browsing(f'["{PAGE}"]')
async def test_a_preflight_is_answered_without_a_key(engine, client):
    got = await client.options(CHAT, headers=PREFLIGHT)
    assert got.status_code == 200
    assert got.headers["access-control-allow-origin"] == PAGE
    assert {"POST", "DELETE"} <= set(got.headers["access-control-allow-methods"].split(", "))
    assert got.headers["access-control-allow-headers"] == "authorization,content-type"
    assert got.headers["vary"] == "origin"
    assert not engine.seen


@browsing(f'["{PAGE}"]')
async def test_a_page_from_elsewhere_is_told_no(engine, client):
    got = await client.options(CHAT, headers={**PREFLIGHT, "origin": OTHER})
    assert got.status_code == 400
    assert "access-control-allow-origin" not in got.headers
    keys = {"authorization": f"Bearer {KEY}", "origin": OTHER}
    got = await client.post(CHAT, content=body_for(CHAT), headers=keys)
    assert got.status_code == 200, "it is the browser that keeps the answer from the page"
    assert "access-control-allow-origin" not in got.headers


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", CHAT, KEY, 200),
        ("POST", CHAT, "wrong", 401),
        ("GET", "/v1/models", KEY, 200),
        ("GET", "/nothing", KEY, 404),
        ("POST", "/v1/embeddings", KEY, 200),
        ("GET", "/health", "none", 200),
        ("POST", "/health", "none", 405),
    ],
)
@browsing(f'["https://x.example", "{PAGE}"]')
async def test_every_answer_says_who_may_read_it(engine, client, method, path, key, status):
    headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
    content = body_for(CHAT) if method == "POST" else None
    got = await client.request(method, path, content=content, headers=headers)
    assert got.status_code == status
    assert got.headers.get_list("access-control-allow-origin") == [PAGE]
    assert got.headers.get_list("vary") == ["origin"]


@pytest.mark.parametrize("stream", [False, True])
@browsing('["*"]')
async def test_what_an_engine_says_of_it_is_replaced(engine, client, stream):
    async def says(request, seen):
        kind = EVENTS if stream else JSON
        request.start(200, [kind, (b"Access-Control-Allow-Origin", b"http://only.example")])
        request.write(b"data: [DONE]\n\n" if stream else b'{"choices": []}')
        request.finish()

    engine.script = says
    headers = {"origin": PAGE, "authorization": f"Bearer {KEY}"}
    got = await client.post(CHAT, content=body_for(CHAT, stream=stream), headers=headers)
    assert got.headers.get_list("access-control-allow-origin") == ["*"]
    assert "vary" not in got.headers


async def as_vllm(request, seen):
    """Unless told otherwise, vLLM lets all pages in."""
    says = [(b"access-control-allow-origin", b"*"), (b"Access-Control-Allow-Credentials", b"true")]
    if any(name == b"access-control-request-method" for name, _ in seen.headers):
        request.respond(200, [*says, (b"access-control-allow-methods", b"*")], b"OK")
    else:
        request.respond(200 if seen.method == "POST" else 405, [JSON, *says], b'{"choices": []}')


@on_loop
async def test_without_keys_and_without_the_setting_no_page_gets_in_either():
    """A router on a developer's machine is there for each page that a browser shows."""
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        engine.script = as_vllm
        for path in (CHAT, "/v1/embeddings"):
            got = await client.options(path, headers=PREFLIGHT)
            assert got.status_code == 405
            assert not [name for name in got.headers if name.startswith("access-control")]
            got = await client.post(path, content=body_for(CHAT), headers={"origin": PAGE})
            assert got.status_code == 200
            assert not [name for name in got.headers if name.startswith("access-control")]


@browsing("")
async def test_without_the_setting_nothing_is_said(engine, client):
    assert (await client.options(CHAT, headers=PREFLIGHT)).status_code == 401
    engine.script = as_vllm
    headers = {"origin": PAGE, "authorization": f"Bearer {KEY}"}
    got = await client.post(CHAT, content=body_for(CHAT), headers=headers)
    assert got.status_code == 200
    assert "access-control-allow-origin" not in got.headers


@pytest.mark.parametrize("origin", [None, OTHER, PAGE])
@browsing(f'["{PAGE}"]')
async def test_caches_keep_answers_to_pages_apart(engine, client, origin):
    async def says(request, seen):
        named = [(b"access-control-allow-origin", b"*"), (b"Vary", b"Origin")]
        request.respond(200, [JSON, *named], b'{"choices": []}')

    engine.script = says
    headers = {"authorization": f"Bearer {KEY}", **({"origin": origin} if origin else {})}
    got = await client.post(CHAT, content=body_for(CHAT), headers=headers)
    assert got.headers.get_list("vary") == ["origin"]
    allowed = got.headers.get_list("access-control-allow-origin")
    assert allowed == ([PAGE] if origin == PAGE else [])


@browsing(f'["{PAGE}"]')
async def test_who_is_no_page_hears_nothing_of_it(engine, client):
    headers = {"authorization": f"Bearer {KEY}"}
    got = await client.post(CHAT, content=body_for(CHAT), headers=headers)
    assert not [name for name in got.headers if name.startswith("access-control")]
