"""A minimal params.yaml with changes, and what is wrong with it, for tests."""

from __future__ import annotations

import pytest

from throughline.config.params import check
from throughline.config.params_file import apply_overrides
from throughline.shared.errors import InvalidParams


def document(*overrides, **changes):
    """A minimal valid document with changes, given as on the command line or with keys whose dots
    are written as __.
    """
    base = {
        "data": {"source": "image_folder", "path": "photos"},
        "preprocess": ["decode"],
        "pipelines": {"naive": {"read": "shards"}},
    }
    changed = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    apply_overrides(base, [*overrides, *changed])
    return base


def problems(*overrides, **changes):
    """What is wrong with it."""
    with pytest.raises(InvalidParams) as caught:
        check(document(*overrides, **changes))
    return "\n".join(caught.value.problems)
