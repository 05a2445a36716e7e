"""Workflows: the graph of a batch job's groups, and the decision which steps may begin."""
