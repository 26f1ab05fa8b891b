"""From a scorer's folder to an HTTP server: the scorer, the batcher, the server, its client."""
