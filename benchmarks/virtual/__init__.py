"""vLLM's real scheduler on a clock of its own, at the step times of a machine that isn't there."""
