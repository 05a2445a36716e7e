"""Defaults that depend on more than one field, one module per object."""
