"""Checks of a site or a plan before round 1: files, certificates, data, disk, and the way to each neighbour."""
