"""Measures how long steps, batches and the model alone take, and draws conclusions."""
