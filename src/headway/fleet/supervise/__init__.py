"""The supervisor: starts a fleet's processes, keeps them running, does what it is asked."""
