"""What became of requests: figures, and how sure they are."""
