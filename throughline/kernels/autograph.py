"""Restricts AutoGraph to the functions that may need it.

tf.data and `tf.function` rewrite the Python functions they trace, and all that these call, so that
`if` and `for` work on tensors. This program's functions use `tf.cond` instead; rewriting them took
two of the six seconds in which a configuration was built. Users' own ops are still rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def without_autograph(function: Function) -> Function:
    """Decorator: AutoGraph rewrites neither the function nor what it calls."""
    return tf.autograph.experimental.do_not_convert(function)


def rewrite_for_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of a user's op as AutoGraph rewrites it for tensors.

    Return the method unchanged in eager mode, or if its source cannot be read.
    """
    function = getattr(method, "__func__", None)
    if function is None or tf.executing_eagerly():
        return method
    try:
        rewritten = tf.autograph.to_graph(function)
    except Exception:  # noqa: BLE001 - an error of AutoGraph's own, by no public name
        return method
    return partial(rewritten, method.__self__)  # pyright: ignore[reportFunctionMemberAccess]
