"""Time limits for required events. They say nothing about speed, which `bench/` measures.

The limits are shorter than the daemon's own timeouts: two minutes for an idle connection, and more
for a blocking query. So a missed wake-up that only a timeout repairs fails the test.
"""

HAPPENS_WITHIN = 60  # seconds
DEADLINE = 180  # seconds before a test fails, with the stacks of all threads
