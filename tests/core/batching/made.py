"""Policies, prompts and step-time models for tests of the batching core."""

from typing import Any

from hypothesis import strategies as st

from headway.core.batching.caps import Caps
from headway.core.batching.order import ORDER_BY_NAME, Order, PrefillClock
from headway.core.batching.policy import Policy
from headway.core.batching.settings import parse
from headway.core.latency import SETTLED_SAMPLES, StepShape, StepTimeModel, attention_work
from headway.core.views import Prompt

MAX_MODEL_LEN = 131_072
STEP_S = 0.02
MACHINE = StepShape(1e-4, 2e-9, 1e-7, 5e-4, 1e-8)
"""Seconds a step, and seconds a unit of each term."""


def step_s(shape: StepShape) -> float:
    """How long that machine takes for a step."""
    return STEP_S + sum(c * x for c, x in zip(MACHINE, shape, strict=True))


def settled_model() -> StepTimeModel:
    """A model that knows `MACHINE`."""
    model = StepTimeModel()
    sizes = (0, 8, 64, 200, 512, 1_024, 2_048)
    for i in range(3 * SETTLED_SAMPLES):
        tokens, decodes = sizes[i % len(sizes)], (i * 7) % 33
        context = (i * 611) % 9_000 if tokens else 0
        work = attention_work(tokens, context)
        shape = StepShape(tokens, work, context, decodes, decodes * ((i * 131) % 3_000))
        model.observe(shape, step_s(shape))
    return model


MODEL = settled_model()
"""Shared by tests that only ask."""


def make_policy(
    step_tokens: int = 512, model: StepTimeModel | None = None, **values: Any
) -> Policy:
    settings = parse(values, MAX_MODEL_LEN)
    return Policy(settings, model if model is not None else MODEL, step_tokens)


def make_order(name: str, model: StepTimeModel | None = None, **values: Any) -> Order:
    settings = parse({"order": name, **values}, MAX_MODEL_LEN)
    caps = Caps(4, 1, settings.long_prefill_token_threshold)
    clock = PrefillClock(model if model is not None else MODEL, settings, 512)
    return ORDER_BY_NAME[name](caps, clock)


@st.composite
def prompts(draw: Any, name: str = "p", long_tokens: int = 5_000) -> Prompt:
    """Any waiting prompt; ties in arrival, length and priority are common."""
    tokens = draw(
        st.one_of(st.sampled_from((1, 16, 300, long_tokens)), st.integers(1, long_tokens))
    )
    return Prompt(
        id=name,
        arrival_s=float(draw(st.integers(0, 20))),
        tokens=tokens,
        context_tokens=draw(st.sampled_from((0, 0, 512))),
        total_tokens=tokens,
        priority=draw(st.sampled_from((0, 0, 0, -3, 2, 50))),
        ttft_slo_s=draw(st.sampled_from((None, None, 0.5, 10.0))),
        resumed=draw(st.sampled_from((False, False, False, True))),
    )


def many(least: int = 0, most: int = 12, long_tokens: int = 5_000) -> st.SearchStrategy:
    """Lists of prompts with ids of their own."""
    return st.integers(least, most).flatmap(
        lambda n: st.tuples(*(prompts(f"p{i:02d}", long_tokens) for i in range(n)))
    )
