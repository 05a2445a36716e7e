"""Validation rules, one module per object. Each rule yields its errors with Nomad's texts."""
