"""Workflows: the graph of a batch job's groups, and the decision about which steps may begin."""
