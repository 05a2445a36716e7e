"""HTTP: the only package that knows the web framework."""
