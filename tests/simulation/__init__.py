"""A deterministic simulation of the daemon, controlled by one number, the seed.

The parts that decide and run are real, with a real store: worker, applier, watchers, schedules,
retention and runner. Their environment is simulated: the time, the host with its tasks (a driver),
and the order in which Trio runs its tasks. Random operations, failing tasks, full disks, stops and
kills hit the daemon. After each of them, the promises of `promises.py` must hold. When no operation
follows for long enough, everything must settle. Simulated days take seconds.

- `order.py`: a deterministic order of execution; threads do their work inline
- `machine.py`: the driver, and the processes that outlive the daemon
- `world.py`: one daemon, its start, stop and kill
- `jobs.py`, `operations.py`: user operations
- `promises.py`: invariants
- `scenario.py`: a simulated run by a seed

A seed that breaks a promise prints itself with the complete trace. `python -m bench.simulate --seed
N` repeats the run, byte for byte. Fix the defect with a test of the faulty part, because any other
change of the code changes the run of the seed.
"""
