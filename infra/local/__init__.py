"""The whole stack as processes of this machine; the commands are in `__main__.py`."""
