"""Where libraries and scripts train: what is put there to time it."""
