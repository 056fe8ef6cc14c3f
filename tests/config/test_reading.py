import json
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import config
from headway.config import checks
from headway.config.fleet import Fleet
from headway.config.model import Pool, Router
from headway.config.reading import REQUIRED, UNSET, all_settings

POOL = '[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:8100"]\n'
ALL = [
    *all_settings(Fleet, ("fleet",)),
    *all_settings(Router, ("router",)),
    *all_settings(Pool, ("pool", 0)),
]


def problems(text, *, starts=False):
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "h.toml", starts=starts)
    return caught.value.problems


def only(text):
    (problem,) = problems(text)
    return problem


def test_a_pool_is_enough_and_the_rest_has_defaults():
    parsed = config.parse(POOL)
    assert parsed.router == Router()
    assert parsed.pools == (
        Pool(name="a", engines=(config.EngineAddress(tls=False, host="127.0.0.1", port=8100),)),
    )
    assert not parsed.keys


def test_values_arrive_where_they_belong():
    parsed = config.parse(
        '[router]\nport = 9\nslo.ttft_s = 2\nseed = 5\n[router.tls]\ncert = "c"\nkey = "/k"\n'
        + POOL
        + 'role = "both"\nmax_model_len = 7\n',
        "/etc/headway.toml",
    )
    router = parsed.router
    assert (router.port, router.seed) == (9, 5)
    assert isinstance(router.slo.ttft_s, float)
    assert router.tls == config.Tls(cert=pathlib.Path("/etc/c"), key=pathlib.Path("/k"))
    assert parsed.pools[0].max_model_len == 7


def test_configurations_are_equal_when_they_say_the_same():
    assert config.parse(POOL) == config.parse("# moved\n\n" + POOL, "elsewhere.toml")
    assert config.parse(POOL) != config.parse(POOL + 'role = "decode"\n')


@pytest.mark.parametrize("line", ["prot = 1", '"pört\\n" = 1', "slo.ttft = 1", "tls.x = {}"])
def test_an_unknown_key_is_named_with_its_line(line):
    found = problems(f"\n[router]\n{line}\n{POOL}")
    assert [(p.line, p.file) for p in found if "unknown setting" in p.problem] == [(3, "h.toml")]
    assert all(str(p).count("\n") == 0 for p in found)


def test_an_unknown_key_that_is_almost_right_gets_a_hint():
    assert 'did you mean "port"' in only(f"[router]\nprot = 1\n{POOL}").problem
    assert 'did you mean "router"' in only(f"[routr]\n{POOL}").problem


@pytest.mark.parametrize(("path", "setting"), ALL)
@pytest.mark.parametrize("raw", ["{}", "[[]]", "1979-05-27", "-1", "nan", '"\\u0000"', "1e300"])
def test_every_setting_refuses_nonsense_at_its_line(path, setting, raw):
    if (setting.name, raw) in {("env", "{}"), ("min_client_priority", "-1")}:
        return  # no nonsense
    required = {"cert": 'cert = "c"', "key": 'key = "k"', "name": 'name = "a"'}
    wanted = ["name"] if path[0] == "pool" else ["cert", "key"] if "tls" in path else []
    lines = [required[name] for name in wanted if path[-1] != name]
    name = ".".join(part for part in path if not isinstance(part, int))
    header = "[[pool]]" if path[0] == "pool" else f"[{name.rpartition('.')[0]}]"
    key = name.removeprefix("pool.") if path[0] == "pool" else setting.name
    text = "\n".join([header, *lines, f"{key} = {raw}", ""])
    found = problems(text if path[0] == "pool" else text + POOL, starts=True)
    assert {p.line for p in found} == {len(lines) + 2}
    assert all(setting.name in p.key for p in found)


def test_all_problems_are_listed_in_the_order_of_the_file():
    found = problems(
        "x = 1\n[router]\nport = 99999\nadmin_port = true\n[router.slo]\nttft_s = 0\n"
        '[[pool]]\nengines = ["http://h:1",\n "h:2",\n 3]\n[[pool]]\nname = "b"\nengines = []\n'
    )
    assert [(p.line, p.key) for p in found] == [
        (1, "x"),
        (3, "router.port"),
        (4, "router.admin_port"),
        (6, "router.slo.ttft_s"),
        (7, "pool[0].name"),
        (9, "pool[0].engines[1]"),
        (10, "pool[0].engines[2]"),
        (13, "pool[1].engines"),
    ]


def test_the_error_is_a_setting_error_with_a_line_for_each_problem():
    with pytest.raises(config.ConfigError) as caught:
        config.parse("a = 1\nb = 2\n" + POOL, "h.toml")
    error = caught.value
    assert (error.key, error.problem) == ("a", error.problems[0].problem)
    assert [line.split(": ")[:2] for line in str(error).splitlines()] == [
        ["h.toml:1", "a"],
        ["h.toml:2", "b"],
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[router]\nport = \n", 2),
        ("[router]\nport = 1\nport = 2\n", 3),
        ("a = [\n1\n", 2),
        ("\n\n[router\n", 3),
        ("a = 1\n[a]\n", 2),
    ],
)
def test_text_that_is_not_toml_is_an_error_with_its_line(text, line):
    problem = only(text)
    assert (problem.line, problem.key) == (line, "")
    assert "not valid TOML" in problem.problem


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a = 0x" + "f" * 9000])
def test_absurd_toml_is_an_error_too(text):
    assert problems(text)


@pytest.mark.parametrize(
    "text", ["pool = 3", "[pool]\nname = 'a'", "router = 1\n" + POOL, "pool = [1]"]
)
def test_sections_of_the_wrong_kind_are_errors(text):
    assert only(text).line == 1


LINES = [
    "[router]",
    "[router.keys]",
    "[router.slo]",
    "[[pool]]",
    'name = "a"',
    'engines = ["http://h:1"]',
    'engines = ["http://[::1", "", "http://h:0", "http://h\\n:1"]',
    'role = "prefill"',
    'strategy = "dedicated"',
    'strategy = "disaggregated"',
    "slo = []",
    "port = 8000",
    "seed = 1e999",
    'hashes = ["a:b", 3]',
    "pool = []",
    "max_prompt_tokens = 5",
    "[fleet]",
    "[pool.env]",
    "batching = {}",
    'batching.policy = "vllm"',
    "replicas = 3",
    "devices = [0, 1]",
    'flags = ["--port", "1"]',
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(LINES) | st.text(max_size=12), max_size=12), st.booleans())
def test_any_text_is_a_configuration_or_a_config_error(lines, starts):
    try:
        parsed = config.parse("\n".join(lines), starts=starts)
    except config.ConfigError as error:
        assert error.problems  # noqa: PT017 - the other outcome is as good
    else:
        assert config.explain(parsed)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8100", (False, "127.0.0.1", 8100)),
        ("https://GPU-1.example:443/", (True, "gpu-1.example", 443)),
        ("http://[::0001]:1", (False, "::1", 1)),
        ("http://vllm_1:65535", (False, "vllm_1", 65535)),
    ],
)
def test_engine_urls_that_are_right(url, address):
    read = checks.EngineUrl().read(url)
    assert read == address
    assert checks.EngineUrl().read(str(read)) == read


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8100", "http://"),
        ("ftp://h:1", "http://"),
        ("http://h", "no port"),
        ("http://h:1/v1", "more than a host and a port"),
        ("http://h:1?x=1", "more than a host and a port"),
        ("http://h:0", "ports go from 1"),
        ("http://h:99999", "ports go from 1"),
        ("http://user:hunter2@h:1", "user name"),
        ("http://[::g]:1", "use one such as"),
        ("http://[1:2]:1", "IPv6"),
        ("http://h h:1", "use one such as"),
        ("http://h:1\n", "use one such as"),
        ("http://h\t:1", "use one such as"),
        ("http://:1", "use one such as"),
        ("http://h:\u0661", "use one such as"),
        ("", "http://"),
    ],
)
def test_engine_urls_that_are_wrong(url, said):
    with pytest.raises(checks.BadValueError) as caught:
        checks.EngineUrl().read(url)
    ((_, problem),) = caught.value.found
    assert said in problem
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("host", "right"),
    [
        ("0.0.0.0", True),  # noqa: S104 - a value, not a socket
        ("::", True),
        ("router.example", True),
        ("127.0.0.1:80", False),
        ("[::1]", False),
        ("1.2.3", False),
        ("a b", False),
        ("", False),
    ],
)
def test_hosts_to_listen_on(host, right):
    text = f"[router]\nhost = {json.dumps(host)}\n{POOL}"
    if right:
        assert config.parse(text).router.host == host
    else:
        assert only(text).key == "router.host"


def test_defaults_pass_their_own_checks():
    for _, setting in ALL:
        if setting.default is not REQUIRED and setting.default not in UNSET:
            assert setting.check.read(setting.default) == setting.default


def test_a_file_that_can_not_be_read_is_a_config_error(tmp_path):
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# \xff\n")
    for path in (tmp_path / "absent.toml", tmp_path, latin):
        with pytest.raises(config.ConfigError, match=str(path)):
            config.load(path)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "headway.toml"
    path.write_bytes(b"\xef\xbb\xbf" + POOL.replace("\n", "\r\n").encode())
    assert config.load(path) == config.parse(POOL)
    assert config.load(path).files == (path,)
