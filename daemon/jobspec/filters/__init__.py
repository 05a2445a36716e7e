"""Filter expressions: syntax tree, parser, and evaluation against values."""
