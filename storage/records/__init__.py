"""The nouns, as frozen structs that name themselves on the wire."""
