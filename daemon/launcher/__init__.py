"""A small process beside the daemon that does what needs the rights of the machine.

It is forked before anything else is imported. It parses nothing that comes from outside, has no thread and no Trio:
it takes one message after another from the daemon, judges each by itself, and answers. It ends with the daemon, and
the daemon ends with it. docs/decisions/0020-a-launcher-beside-the-daemon.md says what it does already.
"""
