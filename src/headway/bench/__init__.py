"""Measures engines from outside: sends a workload, keeps every token's arrival, judges it.

Knows engines and routers only as HTTP servers and the commands that start them. Needs
nothing beyond the standard library, but for `router`, whose load generator and stub engines
need httptools and uvloop. Runs light enough to share a machine of two cores with the two
engines it measures.
"""
