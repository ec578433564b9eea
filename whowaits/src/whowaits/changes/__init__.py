"""What may be changed about a dataset, what it gains, and where the script says it."""
