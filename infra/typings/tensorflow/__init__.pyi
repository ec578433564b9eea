# TensorFlow ships no types and the bundled partial ones contradict it: it is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
