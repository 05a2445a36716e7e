"""Objects that every part of the running daemon shares."""
