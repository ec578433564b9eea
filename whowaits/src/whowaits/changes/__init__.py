"""Possible changes of an input, their gains, and the script's lines that would change."""
