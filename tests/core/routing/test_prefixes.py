"""What is remembered of prompts, and how much."""

from hashlib import blake2b
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.routing.prefixes import PrefixMap

BLOCK = 4
prompts = st.lists(st.sampled_from((b"aaaa", b"bbbb", b"c", b"\x00")), max_size=12).map(b"".join)
engines = st.sampled_from(("x", "y"))


def shared_blocks(one, other):
    """Whole blocks that two prompts share from their start."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same) // BLOCK


@given(prompts, prompts)
def test_chains_agree_exactly_as_far_as_whole_blocks_do(one, other):
    names = PrefixMap(BLOCK)
    a, b = names.chain(one), names.chain(other)
    assert len(a) == len(one) // BLOCK
    agreeing = [x == y for x, y in zip(a, b, strict=False)]
    assert agreeing == [i < shared_blocks(one, other) for i in range(len(agreeing))]


@given(st.lists(st.tuples(prompts, engines), max_size=15), prompts, engines)
def test_a_match_is_the_longest_prefix_sent_there(sent, asked, engine):
    names = PrefixMap(BLOCK)
    for prompt, where in sent:
        names.add(names.chain(prompt), where)
    longest = max((shared_blocks(asked, p) for p, where in sent if where == engine), default=0)
    assert names.match(names.chain(asked), engine) == longest


@given(st.lists(prompts, max_size=25), prompts, st.integers(1, 6))
def test_memory_is_bounded_and_what_is_left_is_a_prefix(sent, asked, most):
    """A full memory forgets ends, so that the first blocks of a chain are those it knows."""
    names = PrefixMap(BLOCK, most)
    for prompt in sent:
        names.add(names.chain(prompt), "x")
        kept = names._names["x"]
        assert len(kept) <= most
        assert names.match(names.chain(prompt), "x") == min(most, len(prompt) // BLOCK)
        for earlier in (*sent, asked):
            chain = names.chain(earlier)
            known = [name in kept for name in chain]
            assert known == sorted(known, reverse=True)
            assert names.match(chain, "x") == sum(known)


@given(prompts, prompts, engines)
def test_an_engine_that_is_forgotten_has_nothing_and_the_others_all(one, other, engine):
    names = PrefixMap(BLOCK)
    for where in ("x", "y"):
        names.add(names.chain(one), where)
        names.add(names.chain(other), where)
    names.forget(engine)
    names.forget(engine)
    assert names.match(names.chain(one), engine) == 0
    kept = "x" if engine == "y" else "y"
    assert names.match(names.chain(one), kept) == len(one) // BLOCK


@given(prompts)
def test_asking_changes_nothing(prompt):
    names = PrefixMap(BLOCK)
    assert names.match(names.chain(prompt), "x") == 0
    assert names._names == {}


@given(st.integers(0, 10), st.integers(0, 60), st.integers(0, 30))
def test_cached_tokens_are_the_blocks_share_of_the_prompt(blocks, nbytes, tokens):
    cached = PrefixMap(BLOCK).cached_tokens(blocks, nbytes, tokens)
    assert 0 <= cached <= tokens
    if nbytes > 0:
        assert cached == min(tokens, blocks * BLOCK * tokens // nbytes)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (-1, 5)])
def test_a_map_of_nothing_is_an_error(sizes):
    with pytest.raises(ValueError, match="1 or more"):
        PrefixMap(*sizes)


def test_the_names_do_not_depend_on_the_process():
    """So that routers agree and a run can be repeated."""
    digests = (blake2b(start, digest_size=8).digest() for start in (b"abcd", b"abcdefgh"))
    assert PrefixMap(BLOCK).chain(b"abcdefghi") == tuple(map(int.from_bytes, digests))
