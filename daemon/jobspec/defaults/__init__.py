"""The defaults of a job that depend on more than one field, noun by noun."""
