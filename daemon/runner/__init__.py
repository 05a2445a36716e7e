"""Run allocations and their tasks on this host and on clusters."""
