"""vLLM's `waiting` queue, showing vLLM only what the step's plan admits."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request


class PlannedQueue(RequestQueue):
    """All waiting requests by id; inside a step, the planned ones in order.

    Length and iteration always mean all of them. Whether it is empty, and what
    is at its head, mean the plan while one is in force.
    """

    def __init__(
        self,
        on_add: Callable[[Request], None],
        on_remove: Callable[[str], None],
        guard: Callable[[Request], bool],
        on_skip: Callable[[Request], None],
    ) -> None:
        """on_add, on_remove: tell the policy what waits. None of the four may raise.

        guard: asked about each planned request right before vLLM sees it.
        on_skip: told first of each planned request that vLLM passed over and puts back.
        """
        self._on_add = on_add
        self._on_remove = on_remove
        self._guard = guard
        self._on_skip = on_skip
        self._requests: dict[str, Request] = {}
        self._planned: deque[Request] | None = None

    def begin(self, request_ids: Iterable[str]) -> None:
        """Show vLLM these requests, in this order, until `end`."""
        self._planned = deque(self._requests[request_id] for request_id in request_ids)

    def end(self) -> list[Request]:
        """Show all again; the planned requests that vLLM did not take."""
        left, self._planned = self._planned or deque(), None
        return list(left)

    def get(self, request_id: str) -> Request:
        """The waiting request of this id; KeyError if it doesn't wait."""
        return self._requests[request_id]

    def find(self, request_id: str) -> Request | None:
        """The waiting request of this id, or None."""
        return self._requests.get(request_id)

    def add_request(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._on_add(request)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._on_skip(request)
            self.add_request(request)

    def peek_request(self) -> Request:
        if self._planned is None:
            return next(iter(self._requests.values()))
        return self._planned[0]

    def pop_request(self) -> Request:
        request = self.peek_request()
        if self._planned is not None:
            self._planned.popleft()
        self.remove_request(request)
        return request

    def remove_request(self, request: Request) -> None:
        if self._requests.pop(request.request_id, None) is not None:
            self._on_remove(request.request_id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        if self._planned is None:
            return bool(self._requests)
        return bool(self._planned) and self._guard(self._planned[0])

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())
