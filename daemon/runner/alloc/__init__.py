"""The life of an allocation and of its tasks."""
