"""Batching policies: caps, order and budget inside one engine."""
