"""Entry point for PyInstaller, equal to `python -m daemon`."""

from daemon.__main__ import main

main()
