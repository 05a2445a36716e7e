"""The reason why a file of the user cannot be read."""


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Return the reason of an error, without the number of the error and the path of the file."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    return error.strerror or str(error)
