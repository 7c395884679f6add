"""One site at work."""
