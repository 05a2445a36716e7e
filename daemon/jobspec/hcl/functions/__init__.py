"""The functions that job files may call, by what they work on."""
