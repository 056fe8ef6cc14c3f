"""Routing strategies: which pool, whole or split, which engine."""
