"""The command line: a client of the HTTP API that imports nothing from the daemon."""
