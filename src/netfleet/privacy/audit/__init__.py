"""Attacks on the messages of a run, to see what they show of a site's data."""
