"""The decision: a pure function from what is, and what is wanted, to what shall change."""
