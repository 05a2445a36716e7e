"""Job specification: parsing, defaults, validation and comparison of jobs. No I/O."""
