"""Storage: record types, the database file, and the `Store` that is the only access to it."""
