"""How we speak HTTP: the only place that knows the framework."""
