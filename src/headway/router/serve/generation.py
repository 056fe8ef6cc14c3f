"""A generating request, from its body to the last byte of its answer."""

from headway.router.serve.attempt import LegFailed
from headway.router.serve.dispatch import Dispatch
from headway.router.serve.split import Split


async def generate(dispatch: Dispatch) -> None:
    """Serve it. Whatever happens, the client gets one answer and every count comes back."""
    while (route := dispatch.route()).kind == "whole":
        try:
            await dispatch.whole(route)
        except LegFailed as failure:
            if dispatch.may_follow(failure):
                continue
            dispatch.give_up()
        return
    if route.kind == "split":
        await Split(dispatch, route).run()
    else:
        dispatch.give_up(route)
