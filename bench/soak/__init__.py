"""The soak test: hours of mixed load with kills and faults, to find growth, slowdown and loss."""
