"""What others can learn from what a worker sends: differential privacy, its accounting, and noise that cancels."""
