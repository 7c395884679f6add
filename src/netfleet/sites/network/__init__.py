"""Messages between sites over mutual TLS."""
