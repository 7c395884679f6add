"""Sites that train together over mutual TLS, without a server. Network and asyncio live here only."""

#: Seconds without an answer after which a site that is done leaves an unfinished neighbour.
LINGER = 600.0
