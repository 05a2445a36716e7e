"""Regular expressions and version constraints, by tables of cases and by properties."""
