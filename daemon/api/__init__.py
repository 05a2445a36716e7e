"""The HTTP APIs: a table of routes, and a short handler for each."""
