"""What changes a job: each is one write that also makes the evaluation that follows from it."""
