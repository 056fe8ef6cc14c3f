"""Each setting of a changed file counts at once, or is named as waiting for a restart."""

from dataclasses import replace

import pytest

from headway import config
from headway.config.changes import ROUTER_AT_START
from headway.config.fleet import Fleet
from headway.config.model import Router
from headway.config.reading import form

POOL = '[[pool]]\nname = "a"\nengines = ["http://127.0.0.1:1"]\n'
START = config.parse(POOL)
AT_ONCE = {
    "strategy",
    "receipt",
    "max_concurrent",
    "max_body_bytes",
    "max_bodies_bytes",
    "allowed_origins",
    "long_prompt_tokens",
    "tokenizer",
}
"""Settings of [router] that are read from the service's configuration, or set by its `apply`."""
OTHER: dict = {
    "host": "::1",
    "name": "other",
    "placement": "ray",
    "ray_address": "head:6379",
}


def other(value, name):
    """Another value of the same kind."""
    if name in OTHER:
        return OTHER[name]
    return 7 if value is None else value + 1


def test_every_setting_of_the_router_is_one_or_the_other():
    """A new one has to be put in one of the two: whoever adds it has to find out which."""
    names = {setting.name for setting in form(Router).settings}
    assert names == AT_ONCE | set(ROUTER_AT_START)
    assert set(form(Router).sections) == {"tls", "slo", "timeouts", "keys", "retries", "health"}


@pytest.mark.parametrize("name", ROUTER_AT_START)
def test_what_the_router_uses_at_its_start_is_named(name):
    value = getattr(START.router, name)
    now = replace(START, router=replace(START.router, **{name: other(value, name)}))
    (said,) = config.waiting(START, now)
    shown = "not set" if value is None else f"{value:g}" if isinstance(value, float) else value
    assert said.startswith(f"router.{name} stays {shown}, not ")


@pytest.mark.parametrize("name", [setting.name for setting in form(Fleet).settings])
def test_all_settings_of_the_fleet_are_named_for_who_runs_one(name):
    value = getattr(START.fleet, name)
    now = replace(START, fleet=replace(START.fleet, **{name: other(value, name)}))
    assert config.waiting(START, now) == ()
    (said,) = config.waiting(START, now, fleet=True)
    assert said.startswith(f"fleet.{name} stays ")


def test_tls_is_named_when_it_is_switched_on_or_off():
    tls = config.Tls(cert="c", key="k")
    safe = replace(START, router=replace(START.router, tls=tls))
    assert config.waiting(START, safe) == ("router.tls stays off",)
    assert config.waiting(safe, START) == ("router.tls stays on",)
    renewed = replace(safe, router=replace(safe.router, tls=replace(tls, cert="d")))
    assert config.waiting(safe, renewed) == ()


def test_what_is_as_it_was_says_nothing():
    slower = config.parse("[router]\nmax_concurrent = 3\n[router.slo]\nttft_s = 9\n" + POOL)
    assert config.waiting(START, slower, fleet=True) == ()
