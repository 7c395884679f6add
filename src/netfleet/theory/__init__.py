"""One function per theorem, estimates of its constants, and predictions for an experiment."""
