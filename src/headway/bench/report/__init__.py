"""What a benchmark leaves behind."""
