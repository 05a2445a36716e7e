"""The parts of a diff: values as text, blocks, and what a plan adds to them."""
