"""The daemon: scheduling, running, the HTTP APIs and the command line."""
