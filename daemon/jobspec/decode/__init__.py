"""Decoding of job file bodies to job documents, driven by one schema per block."""
