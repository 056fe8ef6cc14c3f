"""Which grammars have been compiled, told by those that compile them."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from vllm.v1.request import Request


class ReadyGrammars:
    """Requests whose grammar is ready by now.

    vLLM compiles grammars in threads of its own and looks at each waiting request for
    whether its grammar is ready. Here the compiling thread says so, by appending to a
    deque; everything else happens in the scheduler's thread.
    """

    def __init__(self) -> None:
        self._ready: deque[str] = deque()

    def watch(self, request: Request) -> None:
        """Have the request named by `take` once its grammar is ready, or failed."""
        grammar = getattr(request.structured_output_request, "_grammar", None)
        if isinstance(grammar, Future):
            grammar.add_done_callback(lambda _: self._ready.append(request.request_id))

    def take(self) -> Iterator[str]:
        """Ids of the requests named since the last call."""
        while self._ready:
            yield self._ready.popleft()
