"""Windows of a dataset's splits, by the `window` section of params.yaml. Pure; no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from throughline.plan.steps import TokenWindow, Window
from throughline.settings import WindowSettings
from throughline.shared.errors import InvalidParams


def choose_window(
    settings: WindowSettings, steps: Mapping[str, int], columns: Sequence[str]
) -> Window:
    """Return the windows of a series of these `columns`; `steps` are the time steps of each split.

    Raises:
      InvalidParams: A target is no column, or a split is shorter than one window.
    """
    unknown = [name for name in settings.targets if name not in columns]
    if unknown:
        raise InvalidParams(
            [f"window.targets: {unknown[0]} is not a column; known: {', '.join(columns)}"]
        )
    window = Window(
        length=settings.length,
        horizon=settings.horizon,
        stride=settings.stride,
        targets=tuple(columns.index(name) for name in settings.targets or columns),
    )
    for split, count in steps.items():
        if window.count(count) == 0:
            needed = f"window.length + window.horizon = {window.length + window.horizon}"
            raise InvalidParams(
                [
                    f"window: the {split} split has {count} time steps, fewer than {needed};"
                    " shorten the window or give the split more data"
                ]
            )
    return window


def choose_token_window(length: int, tokens: Mapping[str, int]) -> TokenWindow:
    """Return windows of `length` tokens; `tokens` are the numbers of tokens of each split.

    Raises:
      InvalidParams: A split has fewer tokens than one window.
    """
    window = TokenWindow(length=length)
    for split, count in tokens.items():
        if window.count(count) == 0:
            raise InvalidParams(
                [
                    f"window.tokens: the {split} split has {count:,} tokens, fewer than"
                    f" {length:,} and one to predict; shorten the window or give the split more"
                    " text"
                ]
            )
    return window
