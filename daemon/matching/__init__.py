"""Matching of texts against regular expressions and version constraints."""
