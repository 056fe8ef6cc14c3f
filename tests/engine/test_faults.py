"""Whatever fails in headway's own code leaves the step to vLLM, and serving goes on."""

import logging
import random

import pytest
from vllm.v1.request import RequestStatus

from headway.core.batching.backlog import Backlog
from headway.core.batching.policy import Policy
from headway.core.latency import StepTimeModel
from headway.engine import conductor, steering
from headway.engine.conductor import Conductor
from headway.engine.grammars import ReadyGrammars
from headway.engine.kv import KVView, PromptJudge
from headway.engine.lookups import Lookups
from headway.engine.queue import PlannedQueue
from headway.engine.report import StepReport
from headway.engine.steering import MOST_IN_A_ROW
from headway.engine.steps import StepClock
from headway.engine.tracks import Tracks

from .conftest import teach
from .connector import transfer
from .harness import make_request, make_scheduler

IN_EVERY_STEP = (
    (Conductor, "_step"),
    (Conductor, "begin_step"),
    (Conductor, "scheduled"),
    (Conductor, "finished"),
    (Conductor, "tokens_delivered"),
    (Policy, "plan"),
    (StepReport, "planned"),
    (StepReport, "measured"),
    (StepReport, "tick"),
    (StepClock, "decodes"),
    (StepClock, "start_s"),
    (StepClock, "started"),
    (StepClock, "finished"),
    (StepClock, "take_completed_prefills"),
    (StepTimeModel, "predict"),
    (StepTimeModel, "observe"),
    (Tracks, "deadlines_s"),
    (PlannedQueue, "begin"),
    (Conductor, "tell_deferred"),
    (Lookups, "new_step"),
    (ReadyGrammars, "take"),
)
NOW_AND_THEN = (
    (Backlog, "park"),
    (Conductor, "_express"),
    (conductor, "line_up_victims"),
    (Conductor, "_still_fits_caps"),
    (Conductor, "_waits"),
    (Conductor, "end_step"),
    (Conductor, "refuses"),
    (PromptJudge, "length"),
    (PromptJudge, "waits_for"),
    (PromptJudge, "probe"),
    (KVView, "blocks_to_hold"),
    (KVView, "prefix_hit"),
    (Policy, "add"),
    (Policy, "discard"),
    (Tracks, "forget"),
    (Tracks, "got_first_token"),
    (Tracks, "of"),
)
PLACES = (*IN_EVERY_STEP, *NOW_AND_THEN)


def named(place):
    return f"{place[0].__name__}.{place[1]}"


class Faulty:
    """A part that fails while `armed`: in the calls of these numbers, counted from 1, or always.

    Made before the scheduler, which binds some parts once.
    """

    def __init__(self, monkeypatch, place, calls=(), *, always=False):
        owner, name = place
        called = getattr(owner, name)
        self.armed = False
        self.times = self._calls = 0

        def faulty(*args, **kwargs):
            self._calls += self.armed
            if self.armed and (always or self._calls in calls):
                self.times += 1
                raise ZeroDivisionError(name)
            return called(*args, **kwargs)

        faulty.__qualname__ = named(place)
        monkeypatch.setattr(owner, name, faulty)


@pytest.fixture
def log():
    """What headway logs."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("vllm.headway")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


@pytest.fixture
def made(drive):
    """Makes a driver on an engine that is short of memory, so that it preempts."""

    def made(policy="slo", **options):
        driver = drive(policy, budget=128, seats=8, blocks=100, **options)
        if policy == "slo":
            teach(driver.scheduler)
        return driver

    return made


def fallback_steps():
    return steering._metrics().steps._value.get()


def free_blocks(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def arrivals(driver, step, prefix="r"):
    """Decodes, long prompts, short ones, follow-ups: what arrives before the step of this number.

    Their output tokens by name.
    """
    sizes = {0: (30, 60), 1: (500, 5), 4: (90, 30), 5: (40, 1), 9: (400, 40), 14: (60, 8)}
    tokens, output = sizes.get(step, (0, 0))
    names = [f"{prefix}{step}{letter}" for letter in "abc"] if tokens else []
    for name in names:
        driver.add(
            make_request(
                tokens,
                output,
                name=name,
                arrival_time=driver.clock.time(),
                prefix=1,
                prefix_tokens=32,
            )
        )
    return dict.fromkeys(names, output)


def serve(driver, prefix="r"):
    """Let requests arrive and serve them to their end; the tokens that they ask for, by name."""
    wanted = {}
    for step in range(20):
        wanted |= arrivals(driver, step, prefix)
        driver.step()
    driver.run(most=2_000)
    return wanted


def check_served(driver, wanted, free):
    """Each got what it asked for, and nothing is left of any."""
    assert {name: driver.tokens.get(name) for name in wanted} == wanted
    assert {driver.reasons[name] for name in wanted} == {"length"}
    assert free_blocks(driver.scheduler) == free
    assert not len(driver.scheduler.waiting)
    assert driver.scheduler.max_num_scheduled_tokens == driver.scheduler.headway._step_tokens


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("place", [*PLACES, (Conductor, "return_withheld")], ids=named)
def test_a_fault_costs_a_step_and_headway_goes_on(made, monkeypatch, log, place, call):
    fault = Faulty(monkeypatch, place, [call])
    driver = made()
    free, before = free_blocks(driver.scheduler), fallback_steps()
    fault.armed = True
    check_served(driver, serve(driver), free)
    assert fault.times == 1
    assert not driver.scheduler._steering.aside
    assert fallback_steps() - before == 1
    told = [record for record in log if record.exc_info]
    assert len(told) == 1
    assert told[0].levelno == logging.ERROR
    # The conductor that was made anew has forgotten nothing, and remembers nobody who left.
    check_served(driver, serve(driver, "again"), free)
    assert driver.scheduler.waiting is driver.scheduler.headway.queue
    assert len(driver.scheduler.headway.tracks) == 0
    assert len(driver.scheduler.headway.policy.backlog) == 0


@pytest.mark.parametrize("place", PLACES, ids=named)
def test_a_fault_that_stays_leaves_serving_to_vllm(made, monkeypatch, log, place):
    fault = Faulty(monkeypatch, place, always=True)
    driver = made()
    free, before = free_blocks(driver.scheduler), fallback_steps()
    fault.armed = True
    check_served(driver, serve(driver), free)
    fault.armed = False
    assert fault.times
    assert fallback_steps() > before
    kinds = {record.args[0] for record in log if record.exc_info}
    assert len(kinds) == sum(1 for record in log if record.exc_info)
    aside = driver.scheduler._steering.aside
    assert aside or place in NOW_AND_THEN
    assert sum("stands aside" in record.getMessage() for record in log) == aside
    assert fault.times == MOST_IN_A_ROW or not aside or place in NOW_AND_THEN
    # Although the fault has gone: until restart.
    check_served(driver, serve(driver, "again"), free)
    assert driver.scheduler._steering.aside is aside


@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_once_aside_every_step_is_stock_vllms(made, folder, monkeypatch, scheduling_policy):
    Faulty(monkeypatch, (Policy, "plan"), always=True).armed = True
    driver = made("parallel", scheduling_policy=scheduling_policy, caching=False)
    serve(driver)
    assert driver.scheduler._steering.aside
    stock = type(driver)(
        make_scheduler(
            folder,
            None,
            async_scheduling=driver.depth == 2,
            budget=128,
            seats=8,
            blocks=100,
            scheduling_policy=scheduling_policy,
            caching=False,
        ),
        depth=driver.depth,
        clock=driver.clock,
    )
    preempted = set()
    for step in range(200):
        for side in (driver, stock):
            if step < 40:
                arrivals(side, step % 20, f"then{step}")
        ours, theirs = driver.step(), stock.step()
        assert ours.num_scheduled_tokens == theirs.num_scheduled_tokens
        assert ours.preempted_req_ids == theirs.preempted_req_ids
        preempted |= theirs.preempted_req_ids or set()
    assert preempted
    assert not driver.scheduler.has_unfinished_requests()


def test_faults_with_good_steps_between_them_dont_add_up(made, monkeypatch):
    driver = made()
    free, before = free_blocks(driver.scheduler), fallback_steps()
    fault = Faulty(monkeypatch, (Policy, "plan"), range(1, 200, 4))
    fault.armed = True
    check_served(driver, serve(driver), free)
    assert fault.times > MOST_IN_A_ROW
    assert fallback_steps() - before == fault.times
    assert not driver.scheduler._steering.aside


class Chance:
    """Holds any number with a probability."""

    def __init__(self, rng, probability):
        self._rng = rng
        self._probability = probability

    def __contains__(self, number):
        return self._rng.random() < self._probability


@pytest.mark.parametrize("policy", ["priority", "slo"])
@pytest.mark.parametrize("probability", [0.001, 0.01])
def test_whatever_fails_whenever_all_are_served(made, monkeypatch, policy, probability):
    """Also those whose KV comes from elsewhere, those that leave, and those that are preempted."""
    rng = random.Random(probability)
    faults = [Faulty(monkeypatch, place, Chance(rng, probability)) for place in PLACES]
    driver = made(policy, kv_transfer=transfer())
    scheduler = driver.scheduler
    free, wanted = free_blocks(scheduler), {}
    for fault in faults:
        fault.armed = True
    while driver.steps < 150 or scheduler.has_unfinished_requests():
        for _ in range(rng.choice((0, 0, 1, 2)) if driver.steps < 150 else 0):
            tokens, output = rng.choice((20, 60, 300)), rng.choice((1, 10, 40))
            request = make_request(tokens, output, arrival_time=driver.clock.time())
            if rng.random() < 0.2:
                request.kv_transfer_params = {"do_remote_prefill": True}
            wanted[request.request_id] = output
            driver.add(request)
        if rng.random() < 0.03 and (there := sorted(wanted.keys() & scheduler.requests.keys())):
            gone = rng.choice(there)
            if gone not in scheduler.connector.loading:
                scheduler.finish_requests(gone, RequestStatus.FINISHED_ABORTED)
                driver.tokens.pop(gone, None)
                del wanted[gone]
        arrived = scheduler.connector.loading[: rng.choice((0, 0, 2))]
        del scheduler.connector.loading[: len(arrived)]
        driver.kv_arrivals = set(arrived)
        driver.step()
        assert driver.steps < 3_000
    driver.run()
    check_served(driver, wanted, free)
    assert sum(fault.times for fault in faults) > 5


def test_steps_without_anything_to_plan_say_nothing_of_planning(made, monkeypatch):
    driver = made()
    Faulty(monkeypatch, (Policy, "plan"), always=True).armed = True
    driver.add(make_request(30, 200, name="decode"))
    while not driver.scheduler._steering.aside:
        driver.add(make_request(30, 1))
        for _ in range(5):
            driver.step()
        assert driver.steps < 150


def test_in_a_step_of_vllms_own_the_preempted_go_first_then_by_arrival(made, monkeypatch):
    driver = made("parallel", caching=False)
    driver.add(*(make_request(200, 100, name=f"first{i}", arrival_time=i) for i in range(6)))
    preempted = None
    while not preempted:
        output = driver.step()
        preempted = output.preempted_req_ids
    for i in range(8):
        driver.add(make_request(30, 1, name=f"later{i}", arrival_time=100 - i))
    Faulty(monkeypatch, (Policy, "plan"), [1]).armed = True
    scheduler = driver.scheduler
    seen = []
    own = scheduler._steering._leave_to_vllm

    def look():
        own()
        seen.extend(scheduler.waiting)

    monkeypatch.setattr(scheduler._steering, "_leave_to_vllm", look)
    while not seen:
        driver.step()
    came = [r for r in seen if r.status != RequestStatus.PREEMPTED]
    assert [r.status for r in seen[: len(seen) - len(came)]] == [RequestStatus.PREEMPTED] * (
        len(seen) - len(came)
    )
    assert [r.arrival_time for r in came] == sorted(r.arrival_time for r in came)


def test_what_vllm_itself_raises_isnt_taken_for_a_fault(made, monkeypatch, log):
    driver = made()
    driver.add(make_request(30, 4, name="a"))
    before = fallback_steps()
    with monkeypatch.context() as patch:
        Faulty(patch, (type(driver.scheduler.kv_cache_manager), "allocate_slots"), [1]).armed = True
        with pytest.raises(ZeroDivisionError):
            driver.scheduler.schedule()
    driver.run(most=20)
    assert fallback_steps() == before
    assert not [record for record in log if record.exc_info]


def test_a_decode_is_paced_again_after_a_fault(made, monkeypatch):
    """Its next token is due from now on, and it isn't taken for one without a deadline."""
    driver = made()
    scheduler = driver.scheduler
    driver.add(make_request(30, 200, name="decode", arrival_time=driver.clock.time()))
    while "decode" not in driver.first_token_step:
        driver.step()
    Faulty(monkeypatch, (Policy, "plan"), [1]).armed = True
    driver.add(make_request(40, 1, name="other", arrival_time=driver.clock.time()))
    driver.step()
    driver.step()
    assert scheduler.waiting is scheduler.headway.queue
    request = scheduler.requests["decode"]
    (due_s,) = scheduler.headway.tracks.deadlines_s([request], driver.clock.now_s, 0.0)
    assert abs(due_s - driver.clock.now_s) < 1.0


ODD = (
    None, True, False, 0, -1, -0.0, 1e-320, 1e308, -1e308, 2**64 - 1, -(2**63), float("nan"),
    float("inf"), -float("inf"), "", "0.5", b"1", [], [0.5], {}, {"a": 1}, object(), 1j,
)  # fmt: skip


@pytest.mark.parametrize("policy", ["sequential", "parallel", "priority", "slo"])
@pytest.mark.parametrize("name", ["headway_ttft_slo_s", "headway_tpot_slo_s", "kv_transfer_params"])
def test_odd_arguments_of_a_request_are_no_fault(made, log, policy, name):
    driver = made(policy)
    free = free_blocks(driver.scheduler)
    for i, value in enumerate(ODD):
        driver.add(make_request(40 + 60 * (i % 3), 5, name=f"odd{i}", extra_args={name: value}))
        driver.step()
    driver.run(most=500)
    check_served(driver, {f"odd{i}": 5 for i in range(len(ODD))}, free)
    assert not [record for record in log if record.exc_info]


@pytest.mark.parametrize("policy", ["sequential", "parallel", "priority", "slo"])
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_odd_priorities_and_arrival_times_are_no_fault(made, log, policy, scheduling_policy):
    driver = made(policy, scheduling_policy=scheduling_policy)
    free, wanted = free_blocks(driver.scheduler), {}
    for i, priority in enumerate(
        (0, True, -1, 2**31, -(2**63), 10**400, 1.5, -1e308, float("inf"))
    ):
        for arrival_s in (None, 0.0, -1e9, 1e18, float("nan"), float("-inf")):
            name = f"{i}/{arrival_s}"
            wanted[name] = 3
            request = make_request(40, 3, name=name, priority=priority, arrival_time=arrival_s)
            driver.add(request)
        driver.step()
    driver.run(most=500)
    check_served(driver, wanted, free)
    assert not [record for record in log if record.exc_info]
