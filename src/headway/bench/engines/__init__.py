"""Engines under test: started, warmed, measured in turn."""
