"""What PyInstaller begins at: the same as `python -m daemon`."""

from daemon.__main__ import main

main()
