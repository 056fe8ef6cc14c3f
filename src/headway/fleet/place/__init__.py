"""Where engines run: on this machine, or on the nodes of a Ray cluster."""
