"""Texts with actions in them, in the language of Go's text/template: read, and filled in."""
