"""The scheduler: a pure function from current state and desired state to a plan."""
