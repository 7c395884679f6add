"""Real peers: sites that train together over mutual TLS, with no server. Network and asyncio live here only."""

#: Seconds for which a site that is done stays for neighbours that cannot be reached.
LINGER = 600.0
