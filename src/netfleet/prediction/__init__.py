"""Trained models as files that describe themselves, and what they predict for new rows."""
