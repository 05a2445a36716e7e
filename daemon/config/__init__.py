"""Settings: their fields, files, environment and defaults."""
