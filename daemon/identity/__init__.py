"""Login by a cloud identity."""
