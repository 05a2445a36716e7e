"""What each block of a job file may hold, noun by noun.

An argument is `snake_case` in a file and `CamelCase` in the document; only what differs from that
is written out.
"""
