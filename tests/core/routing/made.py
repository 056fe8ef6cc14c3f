"""Engines, pools and requests for tests of the routing core."""

from typing import Any

from hypothesis import strategies as st

from headway.core.routing.views import EngineView, PoolView, RequestView

ENGINE_IDS = tuple(f"{pool}/h:{port}" for pool in "abc" for port in (1, 2, 3))
NOW_S = 50.0

draws = st.floats(0, 1, exclude_max=True)


def request(prompt_tokens: int = 1_000, **values: Any) -> RequestView:
    given: dict[str, Any] = {"max_tokens": None, "arrival_s": NOW_S, "ttft_limit_s": 1e9}
    return RequestView("r", prompt_tokens, **(given | values))


def engine(pool: str = "a", port: int = 1, **values: Any) -> EngineView:
    return EngineView(f"{pool}/h:{port}", pool, **values)


def pool(name: str, *engines: EngineView, role: str = "both", **values: Any) -> PoolView:
    members = tuple(e._replace(role=role) for e in engines or (engine(name),))
    return PoolView(name, role, members, **values)


def engines(name: str = "a", port: int = 1) -> st.SearchStrategy[EngineView]:
    """Any engine; equal loads, full ones and unknown speeds are common."""
    return st.builds(
        EngineView,
        id=st.just(f"{name}/h:{port}"),
        pool=st.just(name),
        role=st.sampled_from(("both", "prefill", "decode")),
        ready=st.sampled_from((True, True, True, False)),
        max_model_len=st.sampled_from((None, 2_048, 8_192)),
        prefill_tokens=st.sampled_from((0, 0, 500, 20_000, -3)),
        decodes=st.sampled_from((0, 0, 1, 40, -1)),
        decode_tokens=st.sampled_from((0, 1_000, 90_000)),
        kv_tokens=st.sampled_from((0, 3_000, 100_000)),
        kv_capacity_tokens=st.sampled_from((None, 4_000, 100_000)),
        queued=st.sampled_from((0, 0, 3, 10_000)),
        prefill_tokens_per_s=st.sampled_from((0.0, 100.0, 5_000.0, float("inf"))),
        weight=st.sampled_from((1.0, 1.0, 0.1, 0.0, -2.0)),
        degraded=st.sampled_from((False, False, True)),
        requests=st.sampled_from((0, 0, 2, 50, -1)),
    )


def fleets() -> st.SearchStrategy[tuple[EngineView, ...]]:
    """Up to four engines of one pool."""
    return st.integers(0, 4).flatmap(
        lambda n: st.tuples(*(engines("a", port) for port in range(n)))
    )


@st.composite
def pools(draw: Any, name: str = "a") -> PoolView:
    members = draw(st.integers(0, 3))
    role = draw(st.sampled_from(("both", "prefill", "decode")))
    listed = tuple(draw(engines(name, port))._replace(role=role) for port in range(1, members + 1))
    limits = st.sampled_from((None, 500, 4_000))
    return PoolView(name, role, listed, draw(limits), draw(st.sampled_from((None, 4_096))))


def many_pools() -> st.SearchStrategy[tuple[PoolView, ...]]:
    return st.integers(0, 3).flatmap(lambda n: st.tuples(*(pools(name) for name in "abc"[:n])))


def requests() -> st.SearchStrategy[RequestView]:
    return st.builds(
        RequestView,
        id=st.just("r"),
        prompt_tokens=st.sampled_from((0, 1, 400, 3_000, 50_000)),
        max_tokens=st.sampled_from((None, 0, 16, 4_096, 100_000)),
        arrival_s=st.sampled_from((0.0, NOW_S - 1, NOW_S)),
        ttft_limit_s=st.sampled_from((0.5, 5.0, 1e6)),
        splittable=st.booleans(),
        cached_tokens=st.dictionaries(
            st.sampled_from(ENGINE_IDS), st.sampled_from((-5, 300, 2_990, 99_999)), max_size=3
        ),
        excluded=st.frozensets(st.sampled_from(ENGINE_IDS), max_size=2),
        too_long_for=st.frozensets(st.sampled_from("abc"), max_size=1),
        exact=st.booleans(),
        kept_tokens=st.dictionaries(
            st.sampled_from(ENGINE_IDS), st.sampled_from((-5, 300, 60_000, 2_000_000)), max_size=4
        ),
    )
