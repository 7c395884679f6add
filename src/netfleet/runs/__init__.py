"""From an experiment file to histories, checkpoints and reports."""
