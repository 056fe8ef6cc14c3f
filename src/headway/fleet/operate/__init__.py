"""What a person sees of a fleet and asks of it: commands, status, logs, why a start failed."""
