"""Process evaluations: run the scheduler and store its plans."""
