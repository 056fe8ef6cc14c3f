"""What strategies are shown of an engine and its pool is what the router knows of them."""

from headway import config
from headway.core.engine_metrics import EngineMetrics
from headway.core.reliability.checks import Checks, HealthState
from headway.core.routing.views import EngineView, PoolView
from headway.router.state.service import Service

FILE = """\
[[pool]]
name = "short"
max_prompt_tokens = 500
max_model_len = 4_000
engines = ["http://127.0.0.1:1"]
[[pool]]
name = "long"
engines = ["http://127.0.0.1:2"]
[router]
strategy = "dedicated"
"""


def test_each_figure_stands_in_its_place():
    service = Service(config.parse(FILE), say=print, now=lambda: 50.0)
    engine = service.engines["short/127.0.0.1:1"]
    engine.health.see(Checks(HealthState.DEGRADED))
    engine.health.breaker.readmitted(50.0)
    engine.report, engine.reported_s = EngineMetrics(waiting=9, kv_capacity_tokens=70_000), 50.0
    engine.load.learn_rate(6_000, 2.0)
    engine.claim(prefill_tokens=11, kv_tokens=700)
    for context_tokens in (20, 30):
        engine.claim(prefill_tokens=13, kv_tokens=800).prefilled(context_tokens)
    shown = EngineView(
        id="short/127.0.0.1:1",
        pool="short",
        role="both",
        ready=True,
        max_model_len=4_000,
        prefill_tokens=11,
        decodes=2,
        decode_tokens=50,
        kv_tokens=2_300,
        kv_capacity_tokens=70_000,
        queued=6,
        prefill_tokens_per_s=3_000.0,
        weight=0.1,
        degraded=True,
        requests=3,
    )
    assert service.views()[0] == PoolView(
        name="short",
        role="both",
        engines=(shown,),
        max_prompt_tokens=500,
        max_model_len=4_000,
    )
