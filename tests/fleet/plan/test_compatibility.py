"""Prefill and decode pools that don't fit are found before anything starts, at their lines."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import config
from headway.fleet.plan import compatibility, plan
from headway.fleet.plan.spec import Machine

HARDWARE = Machine(cores=(0,), gpus=tuple(range(16)), memory_gib=64.0, cpu=False)
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


def found(prefill="", decode="", more="", strategy="disaggregated"):
    text = (
        f'[router]\nstrategy = "{strategy}"\n'
        f'[[pool]]\nname = "p"\nrole = "prefill"\n{prefill}\n'
        f'[[pool]]\nname = "d"\nrole = "decode"\n{decode}\n{more}'
    )
    parsed = config.parse(text, "h.toml", starts=True)
    return compatibility.problems(plan.plan(parsed, HARDWARE))


def flags(*words):
    return f"flags = {json.dumps(words)}"


def transfer(**changed):
    return flags("--kv-transfer-config", json.dumps(NIXL | changed))


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("", ""),
        ('model = "m"', 'model = "m"'),
        ('model = "m"\n' + flags("--dtype", "auto"), 'model = "m"'),
        (flags("--dtype", "auto"), flags("--dtype=auto")),
        (flags("--dtype=half", "--block_size=32"), flags("--block-size", "32", "--dtype", "half")),
        (flags("--max-num-seqs", "4"), flags("--enforce-eager")),
        (transfer(), ""),
        (transfer(kv_role="kv_producer"), transfer(kv_role="kv_consumer")),
        (flags("--attention-backend", "X"), 'env.VLLM_ATTENTION_BACKEND = "X"'),
        ("max_model_len = 9", "max_model_len = 9"),
        ("max_model_len = 9", ""),
        ("", "max_model_len = 8192"),
        ("tensor_parallel_size = 2", "tensor_parallel_size = 4"),
    ],
)
def test_pools_that_fit(prefill, decode):
    assert not found(prefill, decode)


@pytest.mark.parametrize(
    ("prefill", "decode", "key", "line", "said"),
    [
        ('model = "m"', "", "pool[1].model", 7, "the bundled model"),
        ('model = "m"', 'model = "n"', "pool[1].model", 10, 'pool "p" with m'),
        (flags("--dtype", "half"), "", "pool[0].flags[0]", 6, "the dtype is half here"),
        # Unless told, the bundled model runs in a dtype of its own.
        (flags("--dtype", "auto"), "", "pool[0].flags[0]", 6, "the dtype is auto here"),
        ("", flags("--x", "--block-size", "8"), "pool[1].flags[1]", 10, "block size is 8"),
        (flags("--kv-cache-dtype", "fp8"), "", "pool[0].flags[0]", 6, "KV cache dtype"),
        (
            flags("--dtype", "half"),
            flags("--dtype", "float"),
            "pool[1].flags[0]",
            10,
            'float here and half in pool "p"',
        ),
        (
            'env.VLLM_ATTENTION_BACKEND = "X"',
            "",
            "pool[0].env.VLLM_ATTENTION_BACKEND",
            6,
            "attention backend is X",
        ),
        ("", "max_model_len = 100", "pool[1].max_model_len", 10, "8192 tokens"),
        ("max_model_len = 101", "max_model_len = 100", "pool[1].max_model_len", 10, "101 tokens"),
        (
            "tensor_parallel_size = 2",
            "tensor_parallel_size = 3",
            "pool[1].tensor_parallel_size",
            10,
            "a multiple",
        ),
        (transfer(kv_role="kv_consumer"), "", "pool[0].flags[0]", 6, "contradicts"),
        ("", transfer(kv_role="kv_producer"), "pool[1].flags[0]", 10, "contradicts"),
        ("", transfer(kv_connector="P2pNcclConnector"), "pool[1].flags[0]", 10, "P2pNccl"),
        ("", flags("--kv-transfer-config", "{"), "pool[1].flags[0]", 10, "not JSON"),
        ("", flags("--kv-transfer-config", "3"), "pool[1].flags[0]", 10, "not a JSON object"),
        (
            flags("--kv-transfer-config.kv_connector=NixlPushConnector"),
            "",
            "pool[0].flags[0]",
            6,
            "use one for both",
        ),
    ],
)
def test_pools_that_do_not_fit(prefill, decode, key, line, said):
    (problem,) = found(prefill, decode)
    assert (problem.key, problem.line, problem.file) == (key, line, "h.toml")
    assert said in problem.problem


def test_a_model_whose_context_is_not_known_may_be_too_long():
    (problem,) = found('model = "m"', 'model = "m"\nmax_model_len = 100')
    assert "whole context" in problem.problem


def test_what_does_not_move_kv_need_not_fit():
    assert not found('model = "m"', "", strategy="unified")


def test_a_pool_for_both_needs_a_connector_where_kv_moves():
    both = '[[pool]]\nname = "b"\n'
    (problem,) = found(more=both)
    assert (problem.key, problem.line) == ("pool[2].role", 11)
    assert not found(more=both + transfer())


def test_every_pair_is_judged_once():
    both = "".join(f'[[pool]]\nname = "b{n}"\n{transfer()}\n' for n in range(2))
    assert not found(more=both)
    problems = found(more=both.replace("[[pool]]", '[[pool]]\nmodel = "m"'))
    pointed = [(problem.key, problem.problem) for problem in problems]
    assert len(pointed) == len(set(pointed))
    named = {(key, said) for key, said in pointed}
    for sender, receiver in itertools.product("p", ("b0", "b1")):
        index = 2 + int(receiver[1])
        assert any(k == f"pool[{index}].model" and f'"{sender}"' in s for k, s in named)


def test_pools_that_run_elsewhere_are_not_judged():
    assert not found(more='[[pool]]\nname = "e"\nrole = "decode"\nengines = ["http://h:1"]\n')


WORDS = st.sampled_from(
    ["--dtype", "half", "--dtype=auto", "-q", "fp8", "--kv-transfer-config", "{}", "[", "-", "--"]
) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=6))
def test_any_flags_are_judged_and_equal_ones_fit(one, other):
    def judged(prefill, decode):
        text = '[router]\nstrategy = "disaggregated"\n'
        for role, words in (("prefill", prefill), ("decode", decode)):
            listed = json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")
            text += f'[[pool]]\nname = "{role}"\nrole = "{role}"\n'
            text += f"flags = {listed}\n" if words else ""
        try:
            parsed = config.parse(text, "h.toml", starts=True)
        except config.ConfigError:
            return []  # two words in one, and the like
        return compatibility.problems(plan.plan(parsed, HARDWARE))

    for problem in judged(one, other):
        assert problem.line
        assert problem.key.startswith("pool[")
    assert all("kv-transfer" in p.problem or "connector" in p.problem for p in judged(one, one))
