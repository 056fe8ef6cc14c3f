"""Parts of `router.py`: the stub engines, the load generator, the arms, their processes."""
