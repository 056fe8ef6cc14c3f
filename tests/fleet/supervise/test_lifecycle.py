"""An engine's life: what may never happen, whatever happens in whatever order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.fleet.supervise.lifecycle import (
    FIRST_BACKOFF_S,
    HEALTHY_S,
    KILL_S,
    LONGEST_BACKOFF_S,
    STARTS,
    Life,
    LifeError,
    backoff_s,
)
from headway.fleet.supervise.states import (
    FAULTS,
    OVER,
    RUNNING,
    TRANSITIONS,
    Action,
    Drain,
    Exited,
    Go,
    Hung,
    Idle,
    LifecycleLimits,
    LifecycleState,
    Lost,
    Ready,
    Restart,
    Start,
    Stop,
    Tick,
    Undrain,
)

LIMITS = LifecycleLimits(start_s=100.0, drain_s=30.0, stop_s=40.0)
EVENTS = [
    Start(),
    Go(),
    Ready(),
    Exited(1, "it broke"),
    Exited(1, "it broke", lasting=True),
    Lost(),
    Hung("stuck"),
    Drain(),
    Undrain(),
    Idle(),
    Stop(),
    Stop(force=True),
    Restart(),
    Tick(),
]


class World:
    """A life, a process that may be there, and a router that was told."""

    def __init__(self):
        self.life = Life(LIMITS)
        self.now_s = 0.0
        self.alive = False
        self.router_open = False
        self.asked = []
        """What the process of now was told."""
        self.launches = 0

    def on(self, event):
        if isinstance(event, Exited):
            self.alive = False
        actions = self.life.on(event, self.now_s)
        for action in actions:
            self.perform(action)
        return actions

    def perform(self, action):
        if action is Action.LAUNCH:
            assert not self.alive
            self.alive, self.asked = True, []
            self.launches += 1
        elif action in {Action.TERMINATE, Action.KILL}:
            assert self.alive
            self.asked.append(action)
        else:
            assert self.router_open is (action is Action.CLOSE)
            self.router_open = action is Action.OPEN

    def wait(self):
        """Until the next Tick is due, which it then is."""
        self.now_s = self.life.until_s
        return self.on(Tick())

    def up(self):
        """Ready for the first time."""
        for event in (Start(), Go(), Ready()):
            self.on(event)

    def check(self):
        life = self.life
        assert self.alive is (life.state in RUNNING)
        assert self.router_open is life.open
        assert life.open is (life.state is LifecycleState.READY and not life.held)
        timeless = OVER | {LifecycleState.READY, LifecycleState.QUEUED}
        assert (life.until_s is None) is (life.state in timeless)
        if life.state is LifecycleState.FAILED:
            assert life.reason


class Machine(RuleBasedStateMachine):
    """Any events, at any time, in any order that a host can bring them in."""

    def __init__(self):
        super().__init__()
        self.world = World()

    @rule(seconds=st.floats(0.0, 500.0))
    def time_passes(self, seconds):
        self.world.now_s += seconds

    @rule(event=st.sampled_from([e for e in EVENTS if not isinstance(e, Exited | Go | Restart)]))
    def something(self, event):
        self.world.on(event)

    @precondition(lambda self: not self.world.life.leaving)
    @rule()
    def restart(self):
        self.world.on(Restart())

    @precondition(lambda self: self.world.alive)
    @rule(status=st.integers(0, 255))
    def exit(self, status):
        self.world.on(Exited(status, "it broke"))

    @precondition(lambda self: self.world.life.state is LifecycleState.QUEUED)
    @rule()
    def go(self):
        self.world.on(Go())

    @precondition(lambda self: self.world.life.until_s is not None)
    @rule()
    def due(self):
        """A Tick that is due always leads on."""
        state, until_s = self.world.life.state, self.world.life.until_s
        self.world.now_s = max(self.world.now_s, until_s)
        self.world.on(Tick())
        after = self.world.life
        assert after.state is not state or after.until_s > until_s

    @rule(event=st.sampled_from([Exited(1, "x"), Go()]))
    def what_cannot_be(self, event):
        life = self.world.life
        if (
            life.state in RUNNING
            if isinstance(event, Exited)
            else life.state is LifecycleState.QUEUED
        ):
            return
        before = vars(life).copy()
        with pytest.raises(LifeError):
            life.on(event, self.world.now_s)
        assert vars(life) == before

    @invariant()
    def holds(self):
        self.world.check()


TestLife = Machine.TestCase
TestLife.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_stop_ends_it_in_bounded_time_and_nothing_starts_it_again(events, force):
    """The process ignores everything but a kill, which it obeys at the second try."""
    world = World()
    for event in events:
        possible = {Exited: world.alive, Go: world.life.state is LifecycleState.QUEUED}
        if possible.get(type(event), True):
            world.on(event)
        world.now_s += 1.0
    world.on(Stop(force=force))
    start_s, launches = world.now_s, world.launches
    kills = 0
    while world.life.state is not LifecycleState.STOPPED:
        if world.asked.count(Action.KILL) >= 2:
            world.on(Exited(137, "killed"))
            continue
        world.wait()
        kills += 1
        assert kills < 6
    assert world.launches == launches
    assert world.now_s - start_s <= LIMITS.drain_s + LIMITS.stop_s + 2 * KILL_S
    world.check()


@pytest.mark.parametrize("event", [Exited(1, "it broke"), Lost(), Hung("stuck"), Hung()])
def test_the_router_hears_of_a_failure_before_anything_else_is_done(event):
    world = World()
    world.up()
    assert world.on(event)[0] is Action.CLOSE


def test_restarts_back_off_twice_as_long_each_time_up_to_a_minute():
    world = World()
    world.up()
    waits = []
    for _ in range(9):
        world.on(Exited(1, "it broke"))
        waits.append(world.life.until_s - world.now_s)
        world.wait()
        world.on(Go())
        world.on(Ready())
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert world.life.restarts == 9


@given(st.integers(1, 10**9))
def test_backoff_is_bounded(failures):
    assert FIRST_BACKOFF_S <= backoff_s(failures) <= LONGEST_BACKOFF_S


@pytest.mark.parametrize(("healthy_s", "wait_s"), [(HEALTHY_S - 1, 4.0), (HEALTHY_S, 1.0)])
def test_five_good_minutes_wipe_the_slate_clean(healthy_s, wait_s):
    world = World()
    world.up()
    for _ in range(2):
        world.on(Exited(1, "it broke"))
        world.wait()
        world.on(Go())
        world.on(Ready())
    world.now_s += healthy_s
    world.on(Exited(1, "it broke"))
    assert world.life.until_s - world.now_s == wait_s


def test_three_failed_starts_in_a_row_are_enough_and_the_cause_stays():
    world = World()
    world.on(Start())
    for _ in range(STARTS):
        world.on(Go())
        world.on(Exited(1, "no such model"))
        if world.life.until_s is not None:
            world.wait()
    assert (world.life.state, world.life.reason) == (LifecycleState.FAILED, "no such model")
    assert world.launches == STARTS


def test_one_failed_start_is_enough_where_its_cause_lasts():
    world = World()
    world.on(Start())
    world.on(Go())
    world.on(Exited(1, "no such model", lasting=True))
    assert (world.life.state, world.life.reason) == (LifecycleState.FAILED, "no such model")
    assert world.launches == 1
    world.on(Restart())
    assert world.life.state is LifecycleState.QUEUED


def test_what_was_ready_once_is_tried_again_whatever_its_cause():
    """What was full or gone since then may be put right while it runs elsewhere."""
    world = World()
    world.up()
    world.on(Exited(1, "a disk is full", lasting=True))
    assert world.life.state is LifecycleState.BACKOFF


def test_a_start_that_took_too_long_may_go_better_next_time():
    """What its log says last is not why it was ended."""
    world = World()
    world.on(Start())
    world.on(Go())
    world.wait()
    world.on(Exited(137, "whatever it was at", lasting=True))
    assert world.life.state is LifecycleState.BACKOFF


def test_an_engine_that_was_ready_once_is_tried_for_ever():
    world = World()
    world.up()
    for _ in range(20):
        world.on(Exited(1, "it broke"))
        world.wait()
        world.on(Go())
    assert world.life.state is LifecycleState.STARTING


def test_a_restart_by_the_operator_counts_failures_anew():
    world = World()
    world.up()
    world.on(Restart())
    world.on(Idle())
    world.on(Exited(0, ""))
    for _ in range(STARTS):
        world.on(Go())
        world.on(Exited(1, "a bad flag"))
        if world.life.until_s is not None:
            world.wait()
    assert world.life.state is LifecycleState.FAILED
    world.on(Restart())
    assert world.life.state is LifecycleState.QUEUED


def test_a_start_that_takes_too_long_is_a_failed_start():
    world = World()
    world.on(Start())
    world.on(Go())
    assert world.wait() == (Action.KILL,)
    world.on(Exited(137, "killed"))
    assert world.life.state is LifecycleState.BACKOFF
    assert world.life.reason == "not ready within 100 s"


def test_a_drained_engine_stays_drained_through_a_crash():
    world = World()
    world.up()
    world.on(Drain())
    world.on(Exited(1, "it broke"))
    world.wait()
    world.on(Go())
    world.on(Ready())
    assert not world.router_open
    assert world.on(Undrain()) == (Action.OPEN,)


@pytest.mark.parametrize("event", [Stop(), Restart()])
def test_what_runs_may_end_before_the_engine_does(event):
    world = World()
    world.up()
    assert world.on(event) == (Action.CLOSE,)
    assert world.life.state is LifecycleState.DRAINING
    assert world.on(Idle()) == (Action.TERMINATE,)


def test_requests_that_do_not_end_are_waited_for_as_long_as_was_said():
    world = World()
    world.up()
    world.on(Stop())
    world.now_s = LIMITS.drain_s - 1
    assert world.on(Tick()) == ()
    world.now_s = LIMITS.drain_s
    assert world.on(Tick()) == (Action.TERMINATE,)


def test_a_crash_while_it_drains_for_a_restart_needs_no_backoff():
    world = World()
    world.up()
    world.on(Restart())
    world.on(Exited(1, "it broke"))
    assert world.life.state is LifecycleState.QUEUED


REACHED = [
    # How to get to each state, and with what `Exited` means there.
    (),
    (Start(),),
    (Start(), Go()),
    (Start(), Go(), Ready()),
    (Start(), Go(), Ready(), Stop()),
    (Start(), Go(), Ready(), Restart()),
    (Start(), Go(), Ready(), Stop(), Idle()),
    (Start(), Go(), Ready(), Restart(), Idle()),
    (Start(), Go(), Ready(), Lost()),
    (Start(), Go(), Exited(1, "it broke")),
    (Start(), Go(), Exited(1, "it broke", lasting=True)),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize(
    "before", REACHED, ids=lambda events: (events and str(events[-1])) or "new"
)
@pytest.mark.parametrize("late", [False, True])
def test_every_event_leads_where_the_table_says(before, event, late):
    life = Life(LIMITS)
    for each in before:
        life.on(each, 0.0)
    state, was = life.state, (life.reason, life.held, life.until_s)
    now_s = 1e6 if late else 0.0
    allowed = TRANSITIONS[state].get(type(event))
    if allowed is None and isinstance(event, FAULTS):
        with pytest.raises(LifeError):
            life.on(event, now_s)
    else:
        life.on(event, now_s)
    if allowed is None:
        assert (life.state, life.reason, life.held, life.until_s) == (state, *was)
    else:
        assert life.state in allowed


def test_the_table_has_all_states_and_those_reached_above_are_all():
    assert set(TRANSITIONS) == set(LifecycleState)
    reached = set()
    for before in REACHED:
        life = Life(LIMITS)
        for each in before:
            life.on(each, 0.0)
        reached.add(life.state)
    assert reached == set(LifecycleState)
