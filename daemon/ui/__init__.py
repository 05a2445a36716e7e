"""The web interface: HTML pages rendered by the daemon."""
