"""Real engines on the two nodes of a Ray cluster."""

import signal
import time
from urllib.parse import urlsplit

import pytest
from tests.fleet.ray_cluster import HEAD, OTHER, installed, two_nodes

from headway import processes

from .conftest import free_port
from .fleets import FLAGS, UNIFIED, Traffic, command_line, complete, fleet, ids, wait_ready

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not installed(), reason="Ray is an extra; make test installs it"),
]


@pytest.fixture
def cluster():
    with two_nodes() as made:
        yield made


def test_both_nodes_serve_and_what_ran_on_a_dead_one_comes_back_on_the_other(
    cluster, tmp_path, tiny_model
):
    """Only requests that had their first byte from the dead node fail."""
    file = tmp_path / "headway.toml"
    file.write_text(
        f'[fleet]\nplacement = "ray"\nray_address = "{cluster.address}"\n'
        f"[router]\nport = {free_port()}\nadmin_port = {free_port()}\n"
        "[router.health]\ninterval_s = 0.5\npasses = 1\n"
        + UNIFIED.format(model=tiny_model, flags=FLAGS)
    )
    with cluster.one_core_less(HEAD) as release, fleet(tmp_path, str(file)) as running:
        url = running.until(r"ready: \S+ on (\S+); try")
        release()  # one engine has landed on each node
        places = {e["name"]: urlsplit(e["url"]) for e in running.engines()}
        assert {place.hostname for place in places.values()} == {HEAD, OTHER}
        (lost,) = [name for name, place in places.items() if place.hostname == OTHER]
        with Traffic(url) as traffic:
            traffic.goes_on()
            time.sleep(3)
            line = f"--host {OTHER} "
            parts = [pid for pid in processes.descendants(1) if line in command_line(pid)]
            below = [each for pid in parts for each in processes.descendants(pid)]
            cluster.kill(OTHER, also={*parts, *below})
            time.sleep(4)
            traffic.goes_on()
            wait_ready(running)
        assert not traffic.unanswered
        assert len(traffic.cut) <= 3, traffic.cut  # one of each client's, at most
        moved = {e["name"]: urlsplit(e["url"]).hostname for e in running.engines()}
        assert moved[lost] == HEAD
        assert complete(url, ids(50))[0].usage.completion_tokens == 4
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
