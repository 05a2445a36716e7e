"""What changes a variable."""
