"""The scheduler's decision, tested with tables of cases and with properties that always hold."""
