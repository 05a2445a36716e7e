"""The decision, by tables of cases and by properties that always hold."""
