"""What is kept: the nouns, the one file they live in, and the only door to it."""
