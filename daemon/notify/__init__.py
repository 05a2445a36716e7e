"""What tells somebody outside of what happens to jobs."""
