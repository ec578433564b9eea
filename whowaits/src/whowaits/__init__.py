"""Says whether a training waits for its input, on anyone's script, unchanged.

`whowaits train.py` is the command. Within a program, such as a notebook, `with whowaits.watch():`
times the trainings in its block as they are, and `whowaits.Callback()` one `fit` of Keras.
"""

from __future__ import annotations

from typing import Any

from .version import __version__

__all__ = ["Callback", "__version__", "load_ipython_extension", "watch"]


def watch(name: str = "this block") -> Any:
    """A context manager that times the trainings within as they are, and prints what it saw; its
    value has the report afterwards.
    """
    from .within import Watch

    return Watch(name)


def Callback(keras: Any = None) -> Any:  # noqa: N802 - stands for a class
    """A callback that times the `fit` to which it is given as it is, and prints what it saw.
    `keras` is the module (keras or tf_keras) that trains; by default the one that is imported.
    """
    from .within import make_callback

    return make_callback(keras)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext whowaits` makes `%%whowaits` time the trainings of a cell."""
    from .within import register_magic

    register_magic(shell)
