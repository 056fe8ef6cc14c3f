"""One request's way through the router, from its path to the end of its answer."""
