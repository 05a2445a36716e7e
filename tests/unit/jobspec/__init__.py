"""The language of jobs, by tables of cases and by the peer's recorded answers."""
