"""From `headway.toml` to the commands of a fleet, without running any."""
