"""The job specification language, tested with tables of cases and recorded Nomad responses."""
