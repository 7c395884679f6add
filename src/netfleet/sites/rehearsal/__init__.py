"""A rehearsal: what a plan's training will take and bring at each site, before it runs; and what came of it."""
