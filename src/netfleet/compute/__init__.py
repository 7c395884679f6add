"""Threads, reused memory, and products with W."""
