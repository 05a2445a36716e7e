"""How a text is compared with what a user wrote: regular expressions and version constraints."""
