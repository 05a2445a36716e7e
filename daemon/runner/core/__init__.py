"""Types and rules for running tasks, for drivers and all other parts of the runner."""
