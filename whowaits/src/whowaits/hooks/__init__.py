"""Hooks into libraries and scripts where they train, to time it."""
