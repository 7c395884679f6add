"""The figures of the paper from configs: panels, their runs by hash, claims and verdicts, pictures.

This folder has one TOML file per panel. `netfleet reproduce NAME` runs what is missing in `results/`, draws `figures/`
and prints what the paper claims beside what was measured.
"""
