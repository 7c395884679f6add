"""Four hospitals with heart disease, beside published results with a server."""
