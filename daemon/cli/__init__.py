"""The command line: a client of the HTTP interface that imports nothing of the daemon."""
