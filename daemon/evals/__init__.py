"""What drives the scheduler: evaluations in, stored plans out."""
