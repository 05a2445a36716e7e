"""Filter expressions taken apart: their tree, how it is read, and how it is applied to values."""
