"""Send notifications about jobs to external receivers."""
