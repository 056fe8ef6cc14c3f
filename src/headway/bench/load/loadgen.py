"""Open-loop streaming client that records when each output token arrived.

Requests are sent when the schedule says, whatever the engine does. Bodies are
made before the clock starts, one connection serves one request, and a token
costs a few tens of microseconds, so that the generator doesn't disturb the engines it
shares cores with.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from headway.bench.load.exchange import CUT_OFF, Extras, Sample, Target, body, exchange
from headway.bench.load.workload import Arrival, Workload, prompts

LEAD_S: Final = 0.3
"""Between making the bodies and the start of the schedule."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait.

    request_s: a request without its last token this long after its intended
        send time has failed.
    hopeless_s: for a request, the time after its intended send time beyond
        which it has certainly missed its limits. Once the schedule is over, hopeless
        requests are disconnected (error `CUT_OFF`) rather than waited for.
    """

    request_s: float = 600.0
    hopeless_s: Callable[[Arrival], float] | None = None


async def play(
    targets: Sequence[Target],
    workload: Workload,
    seed: str,
    patience: Patience | None = None,
    extras: Extras | None = None,
) -> tuple[tuple[Sample, ...], ...]:
    """Play one workload against every target at the same time.

    seed: of the prompts; use another one each time an engine gets the same
        schedule again, or its prefix cache answers.

    Returns the samples of each target, in order of intended send time. Requests
    of the closed loop are sent until the last open-loop request has ended
    and the schedule is over, then disconnected (error `CUT_OFF`).
    """
    patience, extras = patience or Patience(), extras or Extras()
    bodies = [
        body(arrival, prompt, extras)
        for arrival, prompt in zip(workload.arrivals, prompts(workload.arrivals, seed), strict=True)
    ]
    spares = _running_bodies(workload, seed, extras)
    loop = asyncio.get_running_loop()
    start_s = loop.time() + LEAD_S

    def now_s() -> float:
        return loop.time() - start_s

    with _no_collections():
        return tuple(
            await asyncio.gather(
                *(_play_one(t, workload, bodies, spares, now_s, patience) for t in targets)
            )
        )


def _running_bodies(workload: Workload, seed: str, extras: Extras) -> list[tuple[Arrival, bytes]]:
    """Enough closed-loop requests that their prompts never repeat, for a fast engine too."""
    running = workload.running
    if running is None:
        return []
    one = Arrival(0.0, running.length_class, running.prompt_tokens, running.output_tokens)
    several = [one] * (running.count * (8 + round(workload.duration_s)))
    ids = prompts(several, f"{seed}-running")
    return [(one, body(one, prompt, extras)) for prompt in ids]


async def _play_one(
    target: Target,
    workload: Workload,
    bodies: Sequence[bytes],
    spares: Sequence[tuple[Arrival, bytes]],
    now_s: Callable[[], float],
    patience: Patience,
) -> tuple[Sample, ...]:
    running = _start_running(target, workload, spares, now_s, patience)
    tasks: list[asyncio.Task[Sample]] = []
    for arrival, content in zip(workload.arrivals, bodies, strict=True):
        await asyncio.sleep(arrival.at_s - now_s())
        tasks.append(
            asyncio.create_task(
                exchange(target, arrival, content, arrival.at_s, now_s, patience.request_s)
            )
        )
        await asyncio.sleep(0)  # a task cancelled before it starts leaves no sample
    await asyncio.sleep(workload.duration_s - now_s() if running else 0)
    if patience.hopeless_s is not None:
        await _cut_hopeless(workload, tasks, patience.hopeless_s, now_s)
    samples = list(await asyncio.gather(*tasks))
    for worker, done in running:
        worker.cancel()
        await asyncio.wait([worker])
        samples += done
    return tuple(sorted(samples, key=lambda sample: sample.intended_s))


async def _cut_hopeless(
    workload: Workload,
    tasks: Sequence[asyncio.Task[Sample]],
    hopeless_s: Callable[[Arrival], float],
    now_s: Callable[[], float],
) -> None:
    """Wait for each request until it ends or its fate is certain, then disconnect it."""
    await asyncio.sleep(workload.duration_s - now_s())
    ends = [arrival.at_s + hopeless_s(arrival) for arrival in workload.arrivals]
    for end_s, task in sorted(zip(ends, tasks, strict=True), key=lambda pair: pair[0]):
        await asyncio.wait([task], timeout=max(end_s - now_s(), 0.0))
        task.cancel()


def _start_running(
    target: Target,
    workload: Workload,
    spares: Sequence[tuple[Arrival, bytes]],
    now_s: Callable[[], float],
    patience: Patience,
) -> list[tuple[asyncio.Task[None], list[Sample]]]:
    if workload.running is None:
        return []
    queue = iter(spares)

    async def keep_one(first_s: float, done: list[Sample]) -> None:
        await asyncio.sleep(first_s - now_s())
        for arrival, content in queue:
            sample = await exchange(target, arrival, content, now_s(), now_s, patience.request_s)
            done.append(sample)
            if sample.error == CUT_OFF:
                return
            if sample.error is not None:
                await asyncio.sleep(0.5)  # a refusing server isn't hammered

    lists: list[list[Sample]] = [[] for _ in range(workload.running.count)]
    return [
        (asyncio.create_task(keep_one(index * workload.running.stagger_s, done)), done)
        for index, done in enumerate(lists)
    ]


@contextmanager
def _no_collections() -> Iterator[None]:
    """Garbage collection off: its pauses would show as latency of the engines."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
