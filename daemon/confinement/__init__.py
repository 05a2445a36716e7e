"""Restrict processes: system call filters, dropped privileges, egress filters."""
