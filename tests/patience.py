"""How long tests wait for what must happen.

It says nothing on speed (figures are measured in `bench/`): a machine that is ten times as slow passes
the same tests. What fails it would otherwise hang.
"""

HAPPENS_WITHIN = 300  # seconds
CPU_WITHIN = 20  # seconds of CPU, where hostile input would take minutes, and good code takes a fraction of one
DEADLINE = 900  # seconds that any one test may take before all stacks are shown and the run ends
