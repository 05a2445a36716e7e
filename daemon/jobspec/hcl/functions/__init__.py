"""Functions that job files can call, one module per subject."""
