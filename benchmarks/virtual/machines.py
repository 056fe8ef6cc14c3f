"""How long an engine step takes on the machines that are imitated."""

import math
import random
from dataclasses import dataclass
from typing import Any, Final

from harness import computed_before


@dataclass(frozen=True, slots=True)
class Machine:
    """Step times of one model on one machine, and what vLLM makes of its memory.

    A step takes sqrt(weights_s² + (token_s * tokens)²) for the linear layers (whether reading
    the weights or computing is slower), pair_s a pair of tokens that prefill attends to,
    context_s a token of KV that decodes read, decode_s a decode, and host_s.
    jitter: standard deviation of a step's time, as a share of it.
    hiccup_s: how much longer one step in a thousand takes.
    """

    name: str
    step_tokens: int
    seats: int
    blocks: int
    weights_s: float
    token_s: float
    pair_s: float
    context_s: float
    decode_s: float
    host_s: float
    jitter: float = 0.03
    hiccup_s: float = 0.005

    def step_s(self, work: "Work") -> float:
        """Seconds that a step of this work takes, without jitter."""
        linear_s = math.hypot(self.weights_s, self.token_s * work.tokens)
        attention_s = self.pair_s * work.pairs + self.context_s * work.context_tokens
        return self.host_s + linear_s + attention_s + self.decode_s * work.decodes

    def alone_s(self, prompt_tokens: int) -> float:
        """Seconds to prefill a prompt on the idle machine in steps as large as they may be."""
        total_s = 0.0
        for done in range(0, prompt_tokens, self.step_tokens):
            chunk = min(self.step_tokens, prompt_tokens - done)
            total_s += self.step_s(Work(chunk, chunk * (done + chunk / 2), 0, 0))
        return total_s


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes."""

    tokens: int
    pairs: float
    decodes: int
    context_tokens: int


def work_of(output: Any) -> Work:
    """What a scheduled step computes."""
    computed = computed_before(output)
    pairs, decodes, context_tokens = 0.0, 0, 0
    for request_id, tokens in output.num_scheduled_tokens.items():
        context = computed[request_id]
        if tokens == 1:
            decodes += 1
            context_tokens += context
        else:
            pairs += tokens * (context + tokens / 2)
    return Work(output.total_num_scheduled_tokens, pairs, decodes, context_tokens)


class Device:
    """A machine at work: its step times with jitter, the same ones for the same seed."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._random = random.Random(seed)

    def __call__(self, output: Any) -> float:
        seconds = self._machine.step_s(work_of(output))
        seconds *= math.exp(self._random.gauss(0.0, self._machine.jitter))
        return seconds + self._machine.hiccup_s * (self._random.random() < 1e-3)


H100: Final = Machine(
    name="Llama-3.1-70B bf16 on 4 H100",
    step_tokens=8_192,
    seats=1_024,
    blocks=30_251,
    weights_s=0.0137,
    token_s=7.29e-5,
    pair_s=0.95e-9,
    context_s=2.8e-8,
    decode_s=2e-5,
    host_s=0.0016,
)
"""Fitted by hand to sums of kernels measured by ai-dynamo/aiconfigurator 095f58a51 (Llama-3 70B,
bf16, TP4, H100 SXM): prefill within 9% from 256 to 131,072 tokens, decodes within 11% from 1 to
256 requests and 1,024 to 131,072 tokens of context. host_s is what vLLM's measured time a token
adds to such sums. Tokens a step, seats and KV memory are vLLM's own defaults for it."""

CORE: Final = Machine(
    name="SmolLM2-135M on one CPU core",
    step_tokens=512,
    seats=128,
    blocks=6_000,
    weights_s=0.030,
    token_s=2.8e-3,
    pair_s=4e-7,
    context_s=4e-6,
    decode_s=3e-3,
    host_s=0.005,
    jitter=0.08,
    hiccup_s=0.05,
)
"""From runs of the bundled model: 250-400 prompt tokens/s, 30-60 ms a token."""
