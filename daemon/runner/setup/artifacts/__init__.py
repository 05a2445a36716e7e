"""Artifacts of a task: downloaded, verified, unpacked and installed before the task starts."""
