"""Routing strategies: pure functions of a request and the pools, one file and one row each.

A strategy names engines and a reason; the router sends, and asks again with `excluded` or
`too_long_for` filled in when an engine failed or refused the length. No part of a request names a
destination: engines are those of the pools.

Another one takes a function beside these and a row here. Configuration, its checks, its schema,
what it says of itself, the help of `headway route` and `headway init`, and the router go by the
rows.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.routing.route import Route
from headway.core.routing.strategies.dedicated import dedicated
from headway.core.routing.strategies.disaggregated import disaggregated
from headway.core.routing.strategies.unified import unified
from headway.core.routing.views import PoolView, RequestView


class Routing(Protocol):
    """Decides for one request at a time, from what is in flight now."""

    def __call__(
        self, request: RequestView, pools: tuple[PoolView, ...], now_s: float, draw: float
    ) -> Route:
        """The route; the same for the same arguments.

        draw: uniform in [0, 1), breaks ties.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One row.

    meaning: what it does, for users. splits: it sends prefill to one pool and decode to another, so
    it needs both. by_length: it reads `max_prompt_tokens`, so pools differ in it.
    """

    name: str
    route: Routing
    meaning: str
    splits: bool = False
    by_length: bool = False


_ROWS: Final = (
    Strategy(
        name="unified",
        route=unified,
        meaning="each request goes whole to the engine where it waits least",
    ),
    Strategy(
        name="dedicated",
        route=dedicated,
        meaning="each request goes whole to the pool for its length",
        by_length=True,
    ),
    Strategy(
        name="disaggregated",
        route=disaggregated,
        meaning="prompts are prefilled in one pool, their KV moves to another that decodes",
        splits=True,
    ),
)
STRATEGY_BY_NAME: Final = {row.name: row for row in _ROWS}
DEFAULT_STRATEGY: Final = _ROWS[0].name
MEANINGS: Final = "; ".join(f"{row.name}: {row.meaning}" for row in _ROWS)
"""Of all of them, for users."""
LENGTH_STRATEGIES: Final = " or ".join(row.name for row in _ROWS if row.by_length)
"""Those in which pools differ by `max_prompt_tokens`, for users."""
SPLIT_STRATEGY: Final = next(row.name for row in _ROWS if row.splits)
"""What pools of both kinds are for, where nothing else is said."""
