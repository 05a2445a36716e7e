"""Network clients and listeners, and the addresses they may reach."""
