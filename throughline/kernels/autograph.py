"""AutoGraph only for those who may need it.

tf.data and `tf.function` rewrite the Python functions they trace, and whatever these call, so that
`if` and `for` work on tensors. Ours ask `tf.cond`, and are a whole program that builds a pipeline:
rewriting it took two of the six seconds in which a configuration was built. The op of a user is
rewritten as everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def without_autograph(function: Function) -> Function:
    """Mark a function (a decorator): neither it nor what it calls is rewritten."""
    return tf.autograph.experimental.do_not_convert(function)


def rewrite_for_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of an op that is not ours as AutoGraph rewrites it; as it is where tensors have
    values already, or where its source is not to be had.
    """
    function = getattr(method, "__func__", None)
    if function is None or tf.executing_eagerly():
        return method
    try:
        rewritten = tf.autograph.to_graph(function)
    except Exception:  # noqa: BLE001 - an error of AutoGraph's own, by no public name
        return method
    return partial(rewritten, method.__self__)  # pyright: ignore[reportFunctionMemberAccess]
