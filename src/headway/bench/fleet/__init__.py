"""Fleets under test: real engines under traffic."""
