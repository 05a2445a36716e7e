"""Nomad's cluster endpoints: all object types except jobs, with one module for each type."""
