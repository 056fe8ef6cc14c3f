"""Calls to engines: where an engine is, connections to it, one call at a time on each."""
