"""Log output of the daemon itself."""
