"""How tasks run: one module per way."""
