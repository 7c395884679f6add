"""`netfleet reproduce`: the figures of the paper from one TOML file per panel; docs/reproduction.md tells how."""
