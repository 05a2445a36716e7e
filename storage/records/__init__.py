"""The record types: frozen structs that define their own wire names."""
