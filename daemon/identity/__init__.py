"""Logins with a cloud identity or another issuer's JWT, and Steward's own signing keys."""
