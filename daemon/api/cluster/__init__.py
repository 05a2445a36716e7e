"""What real clients ask besides the jobs endpoints, one module per noun."""
