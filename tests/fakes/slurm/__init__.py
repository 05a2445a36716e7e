"""A cluster of our own making: programs in a PATH directory over one file, with a switch for each fault.

`world.py` is what tests hold, `state.py` the file, `programs.py` what the programs answer,
`options.py` which options they know, and `node.py` the child that runs one job.
"""
