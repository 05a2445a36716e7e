"""Random requests to a real daemon, compared with a small reference model."""
