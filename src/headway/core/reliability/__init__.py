"""Whether engines may be sent to."""
