"""How long tests wait for what must happen. It says nothing on speed: figures are measured in `bench/`.

It is less than what a daemon waits for by itself (a blocking query minutes, an idle connection two):
so what should have been woken and was only found later does not pass.
"""

HAPPENS_WITHIN = 60  # seconds
DEADLINE = 900  # seconds that any one test may take before all stacks are shown and the run ends
