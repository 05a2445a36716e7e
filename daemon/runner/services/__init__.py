"""Services of tasks: registration, health checks and lookup."""
