"""Sites that train together over mutual TLS, without a server. Network and asyncio live here only."""

#: Seconds for which a site that is done stays for neighbours that cannot be reached.
LINGER = 600.0
