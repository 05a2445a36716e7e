"""What a task brings along: fetched, checked, unpacked and put into its directory before it starts."""
