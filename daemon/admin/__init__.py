"""Commands of an operator that work on the store without the API."""
