"""Pure functions that turn values into text, and text into values."""
