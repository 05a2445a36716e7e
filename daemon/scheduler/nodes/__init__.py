"""Which node: what may run on it, what fits, and which of several suits best."""
