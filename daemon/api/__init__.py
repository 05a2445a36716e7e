"""What one may ask: a table of routes, and a handler of a few lines for each."""
