"""A simulation of the daemon in which everything that happens follows from one number, the seed.

The parts that decide and run are the real ones, over a real store: worker, applier, watchers, clocks,
retention, runner. Simulated is what they stand on: the time, the machine with its tasks (a driver), and
the order in which Trio runs what is ready. Random operations, failing tasks, full disks, stops and kills
of the daemon fall upon it; after each, the promises of `promises.py` must hold, and when it is left alone
for long enough, all must have come to rest. Days go by in seconds.

- `order.py`: one order of everything; threads do their work inline
- `machine.py`: the driver, and the processes that outlive the daemon
- `world.py`: one daemon, how it begins, ends, and is killed
- `jobs.py`, `operations.py`: what people want of it
- `promises.py`: what must hold
- `scenario.py`: a life by a seed

A seed that breaks a promise prints itself with all that happened; `python -m bench.simulate --seed N`
runs it again, the same to the last byte. Mend what it found, with a test of the part that was wrong: the
same seed is another life as soon as anything else changes.
"""
