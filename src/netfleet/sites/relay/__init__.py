"""A relay for sites that nobody can dial: it forwards the bytes of their TLS connections, which it cannot read."""
