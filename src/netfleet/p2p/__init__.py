"""Real peers: sites that train together over mutual TLS, with no server. Network and asyncio live here only."""
