"""Hours of mixed load with churn, kills and faults: nothing grows, slows down or gets lost."""
