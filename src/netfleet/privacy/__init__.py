"""What a neighbour can learn from a site, and what a site can prove about it."""
