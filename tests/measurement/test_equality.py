"""What the digest of examples tells apart, and what each split is compared with."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.prepared import link_data
from tests.support.project import SMALL, run_stages, write_params
from throughline.data.columns.index import column_path
from throughline.measurement.equality import digest_example

pytestmark = pytest.mark.integration

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


def test_a_configuration_with_a_wrong_label_in_validation_is_not_built(layout, tmp_path, capsys):
    project = link_data(layout.root / "data", tmp_path, snapshot=False)
    shutil.copytree(layout.snapshot, project.snapshot)
    path = column_path(project.snapshot, "validation", "label")
    labels = np.fromfile(path, np.int64)
    labels[-1] = (labels[-1] + 1) % 4
    labels.tofile(path)
    write_params(tmp_path, SMALL)
    with pytest.raises(SystemExit):
        run_stages(tmp_path, "build@optimized")
    said = capsys.readouterr().err
    assert f"1 of {len(labels)} examples are delivered with another label" in said
