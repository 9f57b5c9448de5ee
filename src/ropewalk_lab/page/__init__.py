"""The page: static files, the answers that Python gives to them, and the local server."""
