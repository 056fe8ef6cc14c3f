"""What an engine gets of what a request asks for, read as vLLM reads it, is what its client may."""

import json
import pickle

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.router.asking import FREELY

from headway.core.client_range import ClientRange, default_priority
from headway.core.slo import asked_s
from headway.router.openai import ENDPOINTS, BeyondRange, BodyError, Terms, parse, prefill_body
from headway.router.openai.asked import objects
from headway.router.openai.jobs import passed_request
from headway.router.wire.headers import head_priority

CHAT = "/v1/chat/completions"
LIMITS = ("headway_ttft_slo_s", "headway_tpot_slo_s")
# As vLLM's request classes have them.
Whole = pydantic.TypeAdapter(int)
Arguments = pydantic.TypeAdapter(dict[str, str | int | float | list[str | int | float]] | None)

wholes = st.integers(-30, 30) | st.sampled_from([-(2**63), 2**63 - 1, -(10**30), 10**30])
odd = st.sampled_from(
    [
        *("null", "true", "false", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e300"),
        *('"-100"', '" -100 "', '"5.0"', '"1_0"', '"٣"', '"x"', "[]", "[-100]", "{}", "-100.0"),
        *("5.0", "0.001", "1e-400", "-0.0", '"0.001"', "1" + "0" * 400),
    ]
)
values = wholes.map(str) | st.floats(0, 60).map(repr) | odd
"""JSON of a priority or a limit."""
names = st.sampled_from(
    ["priority", "\\u0070riority", "Priority", "vllm_xargs", *LIMITS, "extra_body", "x"]
)


def object_of(pairs):
    return "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"


inner = st.recursive(
    values,
    lambda deeper: (
        st.lists(st.tuples(names, deeper), max_size=4).map(object_of)
        | st.lists(deeper, max_size=2).map(lambda items: "[" + ", ".join(items) + "]")
    ),
    max_leaves=6,
)
arguments = st.tuples(
    st.just("vllm_xargs"), st.lists(st.tuples(st.sampled_from(LIMITS), values)).map(object_of)
)
pairs = st.lists(st.tuples(st.just("priority"), values) | arguments | st.tuples(names, inner))
"""Fields of a body, those that are there twice too."""
heads = st.none() | wholes.map(str) | st.sampled_from(["x", "", " 7 ", "1_0", "٣"])


@st.composite
def ranges(draw):
    def span(numbers):
        return tuple(sorted((draw(numbers), draw(numbers))))

    priority = span(st.integers(-20, 20))
    default = draw(st.just(default_priority(priority)) | st.integers(*priority))
    limits = st.floats(0.01, 50)
    return ClientRange("c", priority, span(limits), span(limits), default, draw(st.booleans()))


def in_head(text):
    return () if text is None else ((b"x-vllm-priority", text.encode()),)


def outcome(call, *args):
    try:
        return call(*args)
    except BodyError as error:
        return error


def engines_priority(head, body, *, reads_head, reads_body=True):
    """As `_get_priority` has it; None where the request is refused."""
    if reads_head and head is not None:
        return head
    try:
        return Whole.validate_python(body.get("priority", 0)) if reads_body else 0
    except pydantic.ValidationError:
        return None


def engines_limits(body):
    try:
        found = Arguments.validate_python(body.get("vllm_xargs")) or {}
    except pydantic.ValidationError:
        return {}
    return {name: asked_s(found[name]) for name in LIMITS if name in found}


def are_within(limits, allowed):
    """`limits` is (name, what counts for it)."""
    ends = {LIMITS[0]: allowed.ttft_slo_s, LIMITS[1]: allowed.tpot_slo_s}
    return all(s is None or ends[name][0] <= s <= ends[name][1] for name, s in limits)


@pytest.mark.parametrize("path", ENDPOINTS)
@given(pairs=pairs, head=heads, allowed=ranges())
@example(pairs=[("priority", "-100"), ("priority", "5")], head=None, allowed=ClientRange("c"))
@example(pairs=[("priority", "5"), ("priority", "-100")], head=None, allowed=ClientRange("c"))
@example(pairs=[("priority", "5")], head="-100", allowed=ClientRange("c"))
def test_whatever_is_asked_on_a_path_that_generates(path, pairs, head, allowed):
    prompt = [("messages", "[]"), ("prompt", '"p"'), ("input", '"p"')]
    body = object_of([*pairs, *prompt]).encode()
    terms = Terms(allowed, head_priority(in_head(head)))
    parsed = outcome(parse, path, body, terms)
    if isinstance(parsed, BodyError):
        assert parsed.status == 400
        assert parsed.code == "invalid_type" or (allowed.refuses and parsed.code == "out_of_range")
        return
    assert not (allowed.refuses and parsed.settled.clamped)
    legs = [parsed.body, prefill_body(parsed)] if parsed.splittable else [parsed.body]
    for sent in map(json.loads, legs):
        for reads_head, reads_body in ((True, path != "/v1/messages"), (False, True)):
            if reads_head or "priority" in sent:  # older engines at least aren't told otherwise
                found = engines_priority(
                    parsed.settled.priority, sent, reads_head=reads_head, reads_body=reads_body
                )
                assert found is None or allowed.priority[0] <= found <= allowed.priority[1]
        limits = engines_limits(sent)
        assert are_within(limits.items(), allowed)
        known = dict(zip(LIMITS, (parsed.ttft_slo_s, parsed.tpot_slo_s), strict=True))
        assert all(seconds == known[name] for name, seconds in limits.items())


@given(pairs=pairs, head=heads, allowed=ranges(), inside=st.booleans())
@example(pairs=[("\\u0070riority", "-1")], head=None, allowed=ClientRange("c"), inside=False)
@example(
    pairs=[("headway_ttft_\\u0073lo_s", "0.1")],
    head=None,
    allowed=ClientRange("c", ttft_slo_s=(1.0, 2.0)),
    inside=True,
)
def test_whatever_is_asked_on_a_path_that_passes(pairs, head, allowed, inside):
    body = object_of([("sampling_params", object_of(pairs))] if inside else pairs).encode()
    terms = Terms(allowed, head_priority(in_head(head)))
    found = outcome(passed_request, body, terms)
    if isinstance(found, BodyError):
        assert found.status == 400
        return
    settled, made = found
    assert settled.changed == bool(made)
    sent = json.loads(made[0] if made else body)
    for reads_head in (False, True):
        found = engines_priority(settled.priority, sent, reads_head=reads_head)
        assert found is None or allowed.priority[0] <= found <= allowed.priority[1]
    for each in objects(sent):
        assert are_within([(name, asked_s(each.get(name))) for name in LIMITS], allowed)
        assert True not in [each.get(name) for name in LIMITS if type(each.get(name)) is bool]


@given(
    path=st.sampled_from([*ENDPOINTS]),
    allowed=ranges(),
    data=st.data(),
)
def test_what_is_in_the_range_passes_byte_for_byte(path, allowed, data):
    fields = {"messages": [], "prompt": "p", "input": "p"}
    if data.draw(st.booleans()):
        fields["priority"] = data.draw(st.integers(*allowed.priority))
    if data.draw(st.booleans()):
        ttft_s, tpot_s = (
            data.draw(st.floats(*ends)) for ends in (allowed.ttft_slo_s, allowed.tpot_slo_s)
        )
        fields["vllm_xargs"] = {LIMITS[0]: ttft_s, LIMITS[1]: tpot_s, "own": "x"}
    body = json.dumps(fields).encode()
    parsed = parse(path, body, Terms(allowed))
    assert parsed.body is body
    assert not parsed.settled.clamped
    default = allowed.default_priority or None
    assert parsed.settled.priority == fields.get("priority", default)
    if "priority" in fields or default is None:
        settled, made = passed_request(body, Terms(allowed))
        assert not made
        assert not settled.clamped


@pytest.mark.parametrize(
    ("asked", "granted"),
    [(-100, 0), (0, 0), (7, 7), (100, 10), ("-100", 0), ("7", 7), (-100.0, 0), (True, 1)],
)
def test_a_priority_counts_as_the_nearest_that_is_allowed(asked, granted):
    allowed = ClientRange("c", priority=(0, 10))
    body = json.dumps({"messages": [], "priority": asked}).encode()
    parsed = parse(CHAT, body, Terms(allowed))
    assert parsed.settled.priority == json.loads(parsed.body)["priority"] == granted
    assert parsed.settled.clamped == (() if granted == int(asked) else ("priority",))


@pytest.mark.parametrize("asked", ["x", "1_0", 1.5, float("nan"), float("inf"), [1], {}])
def test_a_priority_that_is_none_is_refused(asked):
    body = json.dumps({"messages": [], "priority": asked}).encode()
    with pytest.raises(BodyError) as caught:
        parse(CHAT, body, FREELY)
    assert (caught.value.status, caught.value.param) == (400, "priority")


@pytest.mark.parametrize(
    ("fields", "head", "kind", "param", "said"),
    [
        ({"priority": -1}, None, "priority", "priority", "from 0 to 10."),
        ({"priority": 11}, None, "priority", "priority", "from 0 to 10."),
        ({"priority": 5}, -1, "priority", "x-vllm-priority", "from 0 to 10."),
        ({"vllm_xargs": {LIMITS[0]: 0.1}}, None, "ttft", LIMITS[0], "from 0.5 to 30 s."),
        ({"vllm_xargs": {LIMITS[1]: 2}}, None, "tpot", LIMITS[1], "from 0.05 to 1 s."),
    ],
)
def test_a_refusal_says_what_would_be_right(fields, head, kind, param, said):
    allowed = ClientRange("c", (0, 10), (0.5, 30.0), (0.05, 1.0), refuses=True)
    with pytest.raises(BeyondRange) as caught:
        parse(CHAT, json.dumps({"messages": [], **fields}).encode(), Terms(allowed, head))
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  as from another process
    assert (error.status, error.param, error.kind) == (400, param, kind)
    assert error.message == f"`{param}` must be {said}"
