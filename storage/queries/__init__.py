"""SQL statements and the functions that run them, one module per area of the schema."""
