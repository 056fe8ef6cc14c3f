import json
import shutil
import subprocess

import pytest

from headway import config


def pool(name, port, **settings):
    lines = [f"{key} = {value!r}" for key, value in settings.items()]
    url = f"http://127.0.0.1:{port}"
    return "\n".join(["[[pool]]", f'name = "{name}"', f'engines = ["{url}"]', *lines, ""])


def router(**settings):
    return "\n".join(["[router]", *(f"{key} = {value!r}" for key, value in settings.items()), ""])


def problems(text):
    try:
        config.parse(text, "h.toml")
    except config.ConfigError as error:
        return {(p.key, p.line) for p in error.problems}
    return set()


BOTH, PREFILL, DECODE = pool("a", 1), pool("p", 2, role="prefill"), pool("d", 3, role="decode")


@pytest.mark.parametrize("strategy", ["unified", "dedicated", "disaggregated"])
def test_no_pool_is_an_error(strategy):
    for text in ("", "pool = []\n"):
        assert "pool" in {key for key, _ in problems(text + router(strategy=strategy))}


@pytest.mark.parametrize("pools", [BOTH, PREFILL, DECODE, BOTH + PREFILL, BOTH + DECODE])
def test_disaggregated_needs_both_roles(pools):
    found = problems(router(strategy="disaggregated") + pools)
    assert found == {("router.strategy", 2)}


@pytest.mark.parametrize("more", ["", BOTH])
def test_disaggregated_with_both_roles_is_fine(more):
    assert not problems(router(strategy="disaggregated") + PREFILL + DECODE + more)


def test_prefill_engines_alone_serve_nobody():
    assert problems(router(strategy="unified") + PREFILL) == {("router.strategy", 2)}


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ([None], "router.strategy"),
        ([100], "router.strategy"),
        ([100, None], None),
        ([None, 100, 50], None),
        ([100, 200], "pool[1].max_prompt_tokens"),
        ([None, None], "pool[1].max_prompt_tokens"),
        ([100, 100, None], "pool[1].max_prompt_tokens"),
    ],
)
def test_dedicated_pools_have_distinct_limits_and_one_has_none(limits, wrong):
    pools = [
        pool(f"p{i}", 10 + i, **({"max_prompt_tokens": limit} if limit else {}))
        for i, limit in enumerate(limits)
    ]
    found = problems(router(strategy="dedicated") + "".join(pools))
    assert {key for key, _ in found} == ({wrong} if wrong else set())


def test_an_engine_belongs_to_one_pool_once():
    twice = '[[pool]]\nname = "b"\nengines = ["http://h:1",\n"http://H:1/", "https://h:1"]\n'
    assert problems(twice) == {("pool[0].engines[1]", 4), ("pool[0].engines[2]", 4)}
    assert problems(BOTH + pool("b", 1)) == {("pool[1].engines[0]", 6)}


def test_pools_have_names_of_their_own():
    assert problems(BOTH + pool("a", 5)) == {("pool[1].name", 5)}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", "::"])  # noqa: S104
def test_the_router_is_not_its_own_engine(host):
    assert problems(router(host=host, port=77) + pool("a", 77)) == {("pool[0].engines[0]", 6)}
    assert problems(router(host=host, admin_port=77) + pool("a", 77))
    assert not problems(router(host=host, admin_port=0, port=0) + pool("a", 77))


def test_the_same_port_on_another_machine_is_no_conflict():
    assert not problems('[[pool]]\nname = "a"\nengines = ["http://10.0.0.1:8000"]\n')


def test_ports_of_the_router_differ():
    assert problems(router(port=9, admin_port=9) + BOTH) == {("router.admin_port", 3)}


def test_a_pool_takes_no_longer_prompts_than_its_context():
    assert problems(pool("a", 1, max_prompt_tokens=10, max_model_len=9)) == {
        ("pool[0].max_prompt_tokens", 4)
    }


def test_all_bodies_together_may_have_what_one_may():
    text = f"[router]\nmax_body_bytes = 5000\nmax_bodies_bytes = 4999\n{BOTH}"
    assert problems(text) == {("router.max_bodies_bytes", 3)}
    assert config.parse(f"[router]\nmax_body_bytes = 5000\n{BOTH}").router.bodies_bytes == 20_000
    text = f"[router]\nmax_body_bytes = 5000\nmax_bodies_bytes = 5000\n{BOTH}"
    assert config.parse(text).router.bodies_bytes == 5000


def test_the_whole_time_is_not_shorter_than_the_first_byte():
    text = f"[router.timeouts]\nfirst_byte_s = 9\ntotal_s = 8\n{BOTH}"
    assert problems(text) == {("router.timeouts.total_s", 3)}


def test_rules_say_nothing_about_settings_that_are_wrong_themselves():
    assert problems(router(port="x", admin_port=8000) + BOTH) == {("router.port", 2)}
    assert problems(router(strategy="disagregated") + PREFILL) == {("router.strategy", 2)}
    broken = router(strategy="disaggregated") + PREFILL + "[[pool]]\nname = 'd'\n"
    assert problems(broken) == {("pool[1].engines", 7)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (router(host="0.0.0.0") + BOTH, ["router.keys"]),  # noqa: S104
        (
            router(host="::") + f"keys.hashes = ['al:{config.hash_key('k' * 20)}']\n" + BOTH,
            ["router.tls"],
        ),
        (BOTH + PREFILL, ["idle"]),
        (BOTH + pool("s", 9, max_prompt_tokens=4), ["max_prompt_tokens"]),
        (BOTH, []),
    ],
)
def test_what_is_risky_or_without_effect_is_a_warning(text, words):
    parsed = config.parse(text)
    found = config.warnings(parsed)
    assert len(found) == len(words)
    assert all(word in warning for word, warning in zip(words, found, strict=True))
    assert config.explain(parsed).count("warning: ") == len(words)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--x", "1", "--y", '{"a": {"password": "s3cret"}}'], ["--y"]),
        (["--x.password=s3cret", "--y=http://me:s3cret@h"], ["--x.password", "--y"]),
        (["--max-num-seqs", "9"], []),
    ],
)
def test_a_flag_that_tells_a_secret_is_a_warning_which_does_not_tell_it(flags, names):
    parsed = config.parse(f'[[pool]]\nname = "p"\nflags = {json.dumps(flags)}\n', starts=True)
    found = config.warnings(parsed)
    assert [warning.split()[0] for warning in found] == names
    assert "s3cret" not in "".join(found)


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """Folder with a certificate, its key, another key and the key under a passphrase."""
    if not shutil.which("openssl"):
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("pem")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"]
    openssl("req", "-x509", *new, "-keyout", "key.pem", "-out", "cert.pem")
    openssl("req", "-x509", *new, "-keyout", "other.pem", "-out", "unused.pem")
    openssl("ec", "-in", "key.pem", "-aes128", "-passout", "pass:abcd", "-out", "locked.pem")
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    ("cert", "key", "wrong"),
    [
        ("cert.pem", "key.pem", set()),
        ("cert.pem", "other.pem", {("router.tls", 1)}),
        ("cert.pem", "locked.pem", {("router.tls", 1)}),
        ("key.pem", "key.pem", {("router.tls", 1)}),
        ("absent.pem", "key.pem", {("router.tls.cert", 2)}),
        ("absent.pem", "absent.pem", {("router.tls.cert", 2), ("router.tls.key", 3)}),
    ],
)
def test_certificate_and_key_are_tried_before_they_are_used(pem, cert, key, wrong):
    path = pem / "headway.toml"
    path.write_text(f'[router.tls]\ncert = "{cert}"\nkey = "{key}"\n{BOTH}')
    try:
        parsed = config.load(path)
    except config.ConfigError as error:
        assert {(p.key, p.line) for p in error.problems} == wrong  # noqa: PT017
    else:
        assert not wrong
        assert config.server_tls(parsed.router.tls)
        assert parsed.files == (path, pem / cert, pem / key)


@pytest.mark.process  # openssl makes the certificates
@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"ca": "cert.pem"}, set()),
        ({"ca": "cert.pem", "cert": "cert.pem", "key": "key.pem"}, set()),
        ({"cert": "cert.pem", "key": "key.pem"}, set()),
        ({"ca": "key.pem"}, {"ca"}),
        ({"ca": "absent.pem", "cert": "x", "key": "y"}, {"ca", "cert", "key"}),
        ({"cert": "cert.pem", "key": "other.pem"}, {""}),
        ({"cert": "cert.pem", "key": "locked.pem"}, {""}),
        ({"cert": "cert.pem"}, {"key"}),
        ({"key": "key.pem"}, {"cert"}),
    ],
)
def test_files_for_engines_are_tried_before_they_are_used(pem, files, wrong):
    path = pem / "headway.toml"
    lines = ['[[pool]]\nname = "a"\nengines = ["https://h:1"]\n[pool.tls]']
    path.write_text("\n".join([*lines, *(f'{name} = "{file}"' for name, file in files.items())]))
    try:
        parsed = config.load(path)
    except config.ConfigError as error:
        found = {p.key.removeprefix("pool[0].tls").lstrip(".") for p in error.problems}
        assert found == wrong
    else:
        assert not wrong
        assert config.engine_tls(parsed.pools[0].tls)
        assert parsed.files == (path, *(pem / file for file in files.values()))


@pytest.mark.parametrize("engines", ['engines = ["http://h:1"]', ""])
def test_files_for_engines_without_tls_are_of_no_use(engines):
    text = f'[[pool]]\nname = "a"\n{engines}\n[pool.tls]\nca = "ca.pem"\n'
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "h.toml", starts=True)
    assert [(p.key, p.line) for p in caught.value.problems] == [("pool[0].tls", 4)]
