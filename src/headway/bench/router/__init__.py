"""Routers under test: stub engines, arms, a load generator of raw protocols."""
