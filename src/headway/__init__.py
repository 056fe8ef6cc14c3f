"""Headway keeps LLM requests moving when some prompts are very long."""
