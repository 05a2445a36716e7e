"""Schemas of the blocks of a job file, one module per block.

Arguments are `snake_case` in a file and `CamelCase` in the document. The schemas list both
names only for exceptions from this rule.
"""
