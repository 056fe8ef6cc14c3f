"""What became of every handoff."""

import itertools
import time


class Oracle:
    """What became of every handoff; `problems` is what no router may do."""

    def __init__(self, lease_s=30.0):
        self.lease_s = lease_s
        self.made_s = {}
        self.made_by = {}
        self.state = {}
        self.problems = []
        self._ids = itertools.count()

    def make(self, port):
        name = f"handoff-{next(self._ids)}"
        self.made_s[name] = time.monotonic()
        self.made_by[name] = port
        self.state[name] = "held"
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": f"engine-{port}",
            "remote_request_id": name,
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "tp_size": 1,
            "remote_block_ids": [[1, 2, 3]],
        }

    def sent(self, params):
        """A decode leg with these came; it may be asked for once."""
        name = params.get("remote_request_id")
        if self.state.get(name) is None:
            self.problems.append(f"{name} was never made")
        elif self.state[name] == "gone":
            return name  # the decode engine finds nobody to pull from
        elif self.state[name] != "held":
            self.problems.append(f"{name} came again, {self.state[name]} already")
        elif time.monotonic() > self.made_s[name] + self.lease_s:
            self.problems.append(f"{name} came after its lease")
        else:
            self.state[name] = "sent"
        return name

    def end(self, name, state):
        if self.state[name] != "gone":
            self.state[name] = state

    def died(self, port):
        """An engine's KV is gone with it."""
        for name, maker in self.made_by.items():
            if maker == port and name in self.state:
                self.state[name] = "gone"

    def free(self, params):
        """A release came. vLLM shrugs at one for KV that is gone."""
        name = params.get("remote_request_id")
        if name not in self.state:
            self.problems.append(f"{name} was released and never made")
            return
        self.end(name, "released")

    @property
    def left(self):
        """Handoffs that nobody pulled or released: they wait for their lease to end."""
        return sorted(n for n, s in self.state.items() if s in {"held", "sent", "lost"})
