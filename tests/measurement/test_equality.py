"""What the digest of examples tells apart, and what each split is compared with."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.project import SMALL, run_stages, write_params
from throughline.data.columns.index import column_path
from throughline.measurement.equality import digest_example
from throughline.results.build import BuildResult
from throughline.shared.layout import Layout

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


@pytest.mark.integration
def test_a_configuration_with_a_wrong_label_in_validation_is_not_built(
    array_file, tmp_path, capsys
):
    (tmp_path / "source").mkdir()
    shutil.copy(array_file, tmp_path / "source" / "data.npz")
    write_params(tmp_path, SMALL)
    run_stages(tmp_path, "ingest", "shard", "snapshot", "build@optimized")
    built = BuildResult.read(Layout(tmp_path).results("optimized"))
    counts = {split: digest.examples for split, digest in built.examples_digests.items()}
    assert counts["validation"] > 0 and sum(counts.values()) == 200

    path = column_path(Layout(tmp_path).snapshot, "validation", "label")
    labels = np.fromfile(path, np.int64)
    labels[-1] = (labels[-1] + 1) % 4
    labels.tofile(path)
    with pytest.raises(SystemExit):
        run_stages(tmp_path, "build@optimized")
    assert (
        f"1 of {len(labels)} examples are delivered with another label" in capsys.readouterr().err
    )
