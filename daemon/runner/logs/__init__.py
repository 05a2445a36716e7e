"""Output of tasks: writing, rotation, reading and retention."""
