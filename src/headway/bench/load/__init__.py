"""Workloads, and the load generator that sends them."""
