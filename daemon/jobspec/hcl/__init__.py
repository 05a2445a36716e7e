"""The HCL2 language of job files: parsing and evaluation, with a position for every error."""
