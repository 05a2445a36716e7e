"""A fake Slurm cluster: programs in a PATH directory over one file, with a switch for each fault.

`world.py` is the interface for tests, and `state.py` the file. `programs.py` implements the
programs, and `options.py` their options. `node.py` is the child that runs one job.
"""
