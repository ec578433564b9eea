"""The digest of a dataset follows its contents, labels and splits, and a manifest is read only if
it is whole.
"""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

from throughline.data.manifest import digest_manifest, read_manifest
from throughline.plan.schema import TableColumns
from throughline.shared.errors import DamagedFile

EXAMPLES = pd.DataFrame(
    {
        "id": ["a", "b"],
        "digest": ["00", "01"],
        "label": [0, 1],
        "split": ["train", "test"],
        "uri": ["/a", "/b"],
    }
)


def digest(examples, classes=("x", "y"), columns=TableColumns()) -> str:  # noqa: B008
    return digest_manifest(examples, classes, columns)


@pytest.mark.parametrize("column", ["id", "digest", "label", "split"])
def test_a_change_of_any_example_changes_the_digest(column):
    changed = EXAMPLES.assign(**{column: EXAMPLES[column].tolist()[::-1]})
    assert digest(changed) != digest(EXAMPLES)


def test_so_do_other_classes_and_columns_and_the_place_of_files_does_not():
    assert digest(EXAMPLES, ("y", "x")) != digest(EXAMPLES)
    assert digest(EXAMPLES.assign(uri="/elsewhere")) == digest(EXAMPLES)
    one, other = (TableColumns(names=("c",), categories=(words,)) for words in (("a",), ("b",)))
    assert digest(EXAMPLES, columns=one) != digest(EXAMPLES, columns=other)


def test_a_table_with_fewer_rows_than_the_summary_says_is_damaged(arrays, tmp_path):
    shutil.copytree(arrays / "manifest", tmp_path / "manifest")
    table = tmp_path / "manifest" / "examples.parquet"
    pd.read_parquet(table).iloc[:-1].to_parquet(table, index=False)
    with pytest.raises(
        DamagedFile, match=r"examples.parquet is damaged \(199 rows, manifest.json says 200\)"
    ):
        read_manifest(tmp_path / "manifest")
