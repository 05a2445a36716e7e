"""What is done: the verbs."""
