"""The figures of a paper from its configs: panels, their runs by hash, claims and verdicts, pictures.

A folder (`reproduce/`) has one TOML file per panel. `netfleet reproduce NAME` runs what is not yet in its `results/`,
draws `figures/` and prints what the paper claims beside what was measured.
"""
