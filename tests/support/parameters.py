"""A minimal params.yaml with changes, and what is wrong with it, for tests."""

import pytest

from throughline.config.params import check
from throughline.config.params_file import apply_overrides
from throughline.shared.errors import InvalidParams


def document(**changes):
    """A minimal valid document with changes given as dotted keys (dots written as __)."""
    base = {
        "data": {"source": "image_folder", "path": "photos"},
        "preprocess": ["decode"],
        "pipelines": {"naive": {"read": "shards"}},
    }
    apply_overrides(base, [f"{key.replace('__', '.')}={value}" for key, value in changes.items()])
    return base


def problems(**changes):
    with pytest.raises(InvalidParams) as caught:
        check(document(**changes))
    return "\n".join(caught.value.problems)
