"""The daemon as a process: start, rights, confinement, signals and systemd."""
