"""The module that each Python process of a recorded test imports first."""
