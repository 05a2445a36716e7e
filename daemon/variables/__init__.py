"""Changes of variables and their locks."""
