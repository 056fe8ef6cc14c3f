"""What the metrics say of an engine that has fallen idle."""

import pytest
from vllm.v1.request import RequestStatus

from headway.engine.report import _metrics

from .harness import make_request


def gauges():
    m = _metrics()
    return [gauge._value.get() for gauge in (m.prefills, m.held, m.waiting)]


@pytest.mark.parametrize("policy", ["parallel", "slo"])
@pytest.mark.parametrize("aborted", [False, True])
def test_an_idle_engine_has_nothing_in_progress(drive, policy, aborted):
    """Whenever metrics were published last before."""
    driver = drive(policy, seats=3, long_prefill_token_threshold=200)
    for i in range(5):
        driver.clock.now_s += 0.4 * i
        requests = [make_request(3_000, 2) for _ in range(4)]
        driver.add(*requests)
        driver.step()
        if aborted:
            for request in requests:
                driver.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        driver.run()
        driver.step()  # tells the workers what has finished
        while driver.busy:
            driver.deliver()
        assert gauges() == [0, 0, 0]


def test_prompts_mid_prefill_are_counted(drive):
    driver = drive("parallel", budget=256, long_prefill_token_threshold=200)
    driver.add(*(make_request(3_000, 2) for _ in range(4)))
    for _ in range(4):
        driver.step()
    driver.clock.now_s += 2.0
    driver.step()
    prefills, held, waiting = gauges()
    assert (prefills, held, waiting) == (1, 1, 3)
    driver.run()
