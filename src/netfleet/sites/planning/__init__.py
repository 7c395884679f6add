"""What the operator prepares: sites, folders and certificates."""
