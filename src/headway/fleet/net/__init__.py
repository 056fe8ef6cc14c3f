"""The fleet's HTTP clients, and what engines tell on /metrics."""
