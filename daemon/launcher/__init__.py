"""A small process next to the daemon that performs privileged operations.

It is forked before anything else is imported. It parses no external input, and uses neither threads
nor Trio. It takes one message at a time from the daemon, checks each message separately, and
answers. If one of the two processes ends, so does the other.
`docs/decisions/0020-launcher-separate-from-the-daemon.md` lists its operations.
"""
