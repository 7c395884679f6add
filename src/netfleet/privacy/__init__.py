"""What others can learn from what a worker sends, and what a site can prove about it."""
