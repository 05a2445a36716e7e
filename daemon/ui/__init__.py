"""The web interface: pages that the daemon makes, for who would rather look than read."""
