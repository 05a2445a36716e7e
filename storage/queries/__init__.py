"""SQL and the functions that run it, one module per area of the schema."""
