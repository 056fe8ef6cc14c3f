"""A fleet: one router and the engines behind it, started and kept running together."""
