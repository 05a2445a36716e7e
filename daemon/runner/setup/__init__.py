"""Preparation of a task before its start: directories, files, secrets and variables."""
