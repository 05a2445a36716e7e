"""Types and rules of running tasks that drivers and all other parts use."""
