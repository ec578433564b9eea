"""Says whether a training waits for its input, in any unchanged script.

`whowaits train.py` is the command. Within a program, such as a notebook, `with whowaits.watch():`
times the trainings in its block, and `whowaits.Callback()` times one `fit` of Keras.
"""

from typing import Any

from .version import __version__

__all__ = ["Callback", "__version__", "load_ipython_extension", "watch"]


def watch(name: str = "this block") -> Any:
    """Return a context manager that times the trainings in its block, unchanged.

    At its end it prints a report on the one with the most steps, and keeps it as `report`.
    """
    from .within import Watch

    return Watch(name)


def Callback(keras: Any = None) -> Any:  # noqa: N802 - stands for a class
    """Return a callback that times the `fit` it is given to, and prints a report.

    `keras` is keras or tf_keras, by default the imported one; without one, raises ImportError.
    """
    from .within import make_callback

    return make_callback(keras)


def load_ipython_extension(shell: Any) -> None:
    """Register `%%whowaits`, which times a cell's trainings; called by `%load_ext whowaits`."""
    from .within import register_magic

    register_magic(shell)
