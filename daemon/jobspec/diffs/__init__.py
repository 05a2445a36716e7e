"""Parts of a diff: values as text, blocks, and the annotations of a plan."""
