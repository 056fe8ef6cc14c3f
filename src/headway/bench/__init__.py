"""Measures engines from outside: sends a workload, keeps every token's arrival, judges it.

Knows engines only as HTTP servers and the commands that start them. Needs
nothing beyond the standard library, and runs light enough to share a machine of
two cores with the two engines it measures.
"""
