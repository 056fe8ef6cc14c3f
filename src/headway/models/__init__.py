"""Models that come with headway, prepared on first use into the user's cache directory."""
