"""Task drivers, one module or package each."""
