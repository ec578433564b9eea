"""What may be changed about a dataset, what that gains, and where the script says it."""
