"""The language of job files: text in, values out, and every mistake at its place."""
