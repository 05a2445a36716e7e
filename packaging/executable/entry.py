"""The entry point for PyInstaller, which does the same as `python -m daemon`."""

from daemon.__main__ import main

main()
