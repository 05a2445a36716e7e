"""Nomad's cluster endpoints: everything beyond jobs, one module per type."""
