"""Processes, logs, status and metrics of sites."""
