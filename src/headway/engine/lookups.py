"""What a KV connector has of waiting prompts, asked as rarely as decisions allow."""

from typing import Any, NamedTuple

from vllm.v1.request import Request


class Held(NamedTuple):
    """KV that a connector holds of a prompt.

    tokens: from the prompt's beginning; 0 if it has none.
    loads: fetching it takes place between steps, before the prompt is computed.
    """

    tokens: int
    loads: bool


class Lookups:
    """Answers of the engine's KV connector, one for each waiting prompt.

    To a connector a question may be a remote call, a lock on what it found, and a count;
    vLLM itself asks once more when it starts the prompt. So an answer stands until vLLM
    tried to start the prompt, and an undecided connector is asked again in turn.
    """

    def __init__(self, scheduler: Any, block_tokens: int) -> None:
        self._connector = scheduler.connector
        self._block_tokens = block_tokens
        self._answers: dict[str, Held] = {}
        self._fresh: set[str] = set()
        self._undecided: set[str] = set()

    def new_step(self) -> None:
        """A step is planned: answers of earlier ones may have become wrong."""
        self._fresh.clear()

    def known(self, request: Request) -> Held | None:
        """What is known without asking; None if nobody has been asked."""
        if self._connector is None or request.skip_reading_prefix_cache:
            return Held(0, loads=False)
        return self._answers.get(request.request_id)

    def is_fresh(self, request: Request) -> bool:
        """Whether the connector was asked while this step was planned."""
        return request.request_id in self._fresh

    def is_undecided(self, request: Request) -> bool:
        """Whether the connector, last asked, didn't know yet."""
        return request.request_id in self._undecided

    def ask(self, request: Request, local_tokens: int) -> Held | None:
        """What the connector has of a prompt with so many tokens cached here.

        None while it doesn't know.
        """
        if self._connector is None or request.skip_reading_prefix_cache:
            return Held(0, loads=False)
        aligned = local_tokens - local_tokens % self._block_tokens
        tokens, loads = self._connector.get_num_new_matched_tokens(request, aligned)
        self.forget(request.request_id)
        if tokens is None:
            self._undecided.add(request.request_id)
            return None
        answer = Held(aligned + int(tokens) if tokens else 0, bool(tokens and loads))
        self._answers[request.request_id] = answer
        self._fresh.add(request.request_id)
        return answer

    def skipped(self, request: Request) -> None:
        """A planned prompt was passed over by vLLM: the connector may not know yet."""
        if self._connector is not None:
            self._undecided.add(request.request_id)

    def forget(self, request_id: str) -> None:
        """The prompt waits no longer."""
        self._answers.pop(request_id, None)
        self._fresh.discard(request_id)
        self._undecided.discard(request_id)
