"""Changes written into a script: `whowaits.changes.edits`."""

import pytest

from whowaits.changes.advice import Edit
from whowaits.changes.edits import CannotBeWritten, edit_source

SCRIPT = b"""import tensorflow as t
data = (
    t.data.Dataset.range(4)
    .map(lambda x: (x, "\xc3\xa9"),
    )  # a comment
    .map((lambda x: x))
    .batch(8)
)
data = data.map(decode, 4)
data = data.map(decode).map(crop).batch(3)
fit(data.map(*given), data.map(f, **more))
rows = files.flat_map(
    g,  # rows
)
rows = files.flat_map(name="\xc3\xa9", map_func=g)
x = DataLoader(
    data, num_workers=0, batch_size=8,
)
"""
IMPORTS = b"import tensorflow as t\n"
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
AHEAD = ".prefetch(tf.data.AUTOTUNE)"
ORDERED = "num_parallel_calls=t.data.AUTOTUNE, deterministic=True"
INTERLEAVE = "interleave(num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)"


@pytest.mark.parametrize(
    ("edits", "changed"),
    [
        ([Edit("train.py:4", "map", PARALLEL), Edit("train.py:7", "batch", AHEAD)],
         {4: '    .map(lambda x: (x, "é"), num_parallel_calls=t.data.AUTOTUNE,',
          7: "    .batch(8).prefetch(t.data.AUTOTUNE)"}),
        ([Edit("train.py:6", "map", PARALLEL)],
         {6: "    .map((lambda x: x), num_parallel_calls=t.data.AUTOTUNE)"}),
        ([Edit("train.py:7", "batch", ".cache().shuffle(9)"), Edit("train.py:7", "batch", AHEAD)],
         {7: "    .batch(8).cache().shuffle(9).prefetch(t.data.AUTOTUNE)"}),
        ([Edit("train.py:10", "map", ".cache()", given="decode")],
         {10: "data = data.map(decode).cache().map(crop).batch(3)"}),
        ([Edit("train.py:12", "flat_map", INTERLEAVE), Edit("train.py:15", "flat_map", INTERLEAVE)],
         {12: "rows = files.interleave(",
          13: f"    g, {ORDERED},  # rows",
          15: f'rows = files.interleave(name="é", map_func=g, {ORDERED})'}),
        ([Edit("train.py:16", "DataLoader", "num_workers=12"),
          Edit("train.py:16", "DataLoader", "persistent_workers=True")],
         {17: "    data, num_workers=12, batch_size=8, persistent_workers=True,"}),
    ],
    ids=["lines", "parentheses", "one call", "given", "another method", "a constant"],
)  # fmt: skip
def test_an_edit_changes_its_line_and_nothing_else(edits, changed):
    expected = SCRIPT.decode().splitlines()
    for number, line in changed.items():
        expected[number - 1] = line
    assert edit_source(SCRIPT, "train.py", edits).decode().splitlines() == expected


@pytest.mark.parametrize(
    ("source", "edit", "reason"),
    [
        (b"f(a, num_workers=n)", Edit("train.py:1", "f", "num_workers=2"), "num_workers=n, which"),
        (b"f(a, **b)", Edit("train.py:1", "f", "num_workers=2"), "may have num_workers already"),
        (SCRIPT, Edit("train.py:10", "map", PARALLEL),
         "train.py:10 has 2 calls of map to edit"),
        (SCRIPT, Edit("train.py:4", "map", "", given="decode"), "has no call of map to edit"),
        (SCRIPT, Edit("lib/train.py:7", "batch", AHEAD),
         "batch is called at lib/train.py:7, not in train"),
        (SCRIPT, Edit("", "batch", AHEAD), "batch is called at a line that was not seen"),
        (IMPORTS + b"flat_map(g)", Edit("train.py:2", "flat_map", INTERLEAVE), "flat_map"),
        (IMPORTS + b'd.flat_map(g, "x")', Edit("train.py:2", "flat_map", INTERLEAVE), "flat_map"),
        (b"from tensorflow import data\nd.map(f)", Edit("train.py:2", "map", PARALLEL),
         "has no `import tensorflow`"),
        (b"# coding: latin-1\n# \xe9\nd.map(f)", Edit("train.py:3", "map", PARALLEL),
         "cannot be read as Python in UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_by_name(source, edit, reason):
    with pytest.raises(CannotBeWritten, match=reason):
        edit_source(source, "train.py", [edit])
