"""Fleets of real engines under traffic, for `benchmarks/fleet.py`."""
