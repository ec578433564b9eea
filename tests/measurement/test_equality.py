"""What the digest of examples tells apart."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.measurement.equality import digest_example

KEY, LABEL, VALUE = np.int64(3), np.int64(1), np.arange(24, dtype=np.uint8).reshape(6, 4, 1)
OTHERS = {
    "shape": (KEY, LABEL, VALUE.reshape(4, 6, 1)),
    "dtype": (KEY, LABEL, VALUE.astype(np.int8)),
    "labels' dtype": (KEY, np.uint64(1), VALUE),
    "label": (KEY, np.int64(2), VALUE),
    "key": (np.int64(4), LABEL, VALUE),
    "values": (KEY, LABEL, VALUE[::-1]),
}


@pytest.mark.parametrize("example", OTHERS.values(), ids=OTHERS)
def test_examples_that_differ_in_anything_have_other_digests(example):
    assert digest_example(*example) != digest_example(KEY, LABEL, VALUE)
