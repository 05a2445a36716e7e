"""Which Steward this is."""

from importlib import metadata

VERSION = metadata.version("steward")
