"""Changes written into a script: `whowaits.changes.edits`."""

from __future__ import annotations

import subprocess

import pytest

from whowaits.changes.advice import Edit
from whowaits.changes.edits import CannotBeWritten, diff, edit_source

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
"""
PARALLEL = "num_parallel_calls=tf.data.AUTOTUNE"
AHEAD = ".prefetch(tf.data.AUTOTUNE)"
INTERLEAVE = "interleave(num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)"


@pytest.mark.parametrize(
    ("edits", "changed"),
    [
        (
            [Edit("train.py:4", "map", PARALLEL), Edit("train.py:7", "batch", AHEAD)],
            {
                4: '    .map(lambda x: (x, "é"), num_parallel_calls=t.data.AUTOTUNE,',
                7: "    .batch(8).prefetch(t.data.AUTOTUNE)",
            },
        ),
        (
            [Edit("train.py:6", "map", PARALLEL)],
            {6: "    .map((lambda x: x), num_parallel_calls=t.data.AUTOTUNE)"},
        ),
        (
            [
                Edit("train.py:7", "batch", ".cache().shuffle(9)"),
                Edit("train.py:7", "batch", AHEAD),
            ],
            {7: "    .batch(8).cache().shuffle(9).prefetch(t.data.AUTOTUNE)"},
        ),
        (
            [Edit("train.py:10", "map", ".cache()", given="decode")],
            {10: "data = data.map(decode).cache().map(crop).batch(3)"},
        ),
    ],
    ids=["lines", "parentheses", "one call", "given"],
)
def test_an_edit_changes_its_line_and_nothing_else(edits, changed):
    expected = SCRIPT.decode().splitlines()
    for number, line in changed.items():
        expected[number - 1] = line
    assert edit_source(SCRIPT, "train.py", edits).decode().splitlines() == expected


@pytest.mark.integration
def test_a_patch_applies_in_a_folder_with_a_blank_and_without_a_last_line_end(
    tmp_path, monkeypatch
):
    script, source = tmp_path / "my folder/my train.py", b"import tensorflow\r\nfit(data.map(f))"
    script.parent.mkdir()
    script.write_bytes(source)
    monkeypatch.chdir(tmp_path)
    edited = edit_source(source, "my train.py", [Edit("my train.py:2", "map", PARALLEL)])
    patch = diff(source, edited, "my folder/my train.py").encode()
    subprocess.run(["git", "apply", "-"], input=patch, check=True, capture_output=True)
    assert script.read_bytes() == edited != source


@pytest.mark.parametrize(
    ("call", "edited"),
    [
        ("files.map(f).flat_map(g)", "files.map(f).interleave(g, {given})"),
        ("files.flat_map(\n    g,  # rows\n)", "files.interleave(\n    g, {given},  # rows\n)"),
        ('files.flat_map(name="é", map_func=g)', 'files.interleave(name="é", map_func=g, {given})'),
    ],
)
def test_a_flat_map_becomes_an_interleave(call, edited):
    given = "num_parallel_calls=t.data.AUTOTUNE, deterministic=True"
    source = f"import tensorflow as t\n{call}\n".encode()
    found = edit_source(source, "train.py", [Edit("train.py:2", "flat_map", INTERLEAVE)]).decode()
    assert found == f"import tensorflow as t\n{edited.format(given=given)}\n"


IMPORTS = b"import tensorflow as t\n"


@pytest.mark.parametrize(
    ("source", "edit", "reason"),
    [
        (SCRIPT, Edit("train.py:9", "map", PARALLEL), "may have num_parallel_calls already"),
        (
            SCRIPT,
            Edit("train.py:10", "map", PARALLEL),
            "2 calls of map can be meant by train.py:10",
        ),
        (SCRIPT, Edit("train.py:4", "map", "", given="decode"), "no call of map can be meant"),
        (
            SCRIPT,
            Edit("lib/train.py:7", "batch", AHEAD),
            "lib/train.py:7 calls batch, and not train",
        ),
        (SCRIPT, Edit("", "batch", AHEAD), "a line that was not seen calls batch"),
        (IMPORTS + b"flat_map(g)", Edit("train.py:2", "flat_map", INTERLEAVE), "flat_map"),
        (IMPORTS + b'd.flat_map(g, "x")', Edit("train.py:2", "flat_map", INTERLEAVE), "flat_map"),
        (
            b"from tensorflow import data\nd.map(f)",
            Edit("train.py:2", "map", PARALLEL),
            "imports no TensorFlow by name",
        ),
        (
            b"# coding: latin-1\n# \xe9\nd.map(f)",
            Edit("train.py:3", "map", PARALLEL),
            "is not Python in UTF-8",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(source, edit, reason):
    with pytest.raises(CannotBeWritten, match=reason):
        edit_source(source, "train.py", [edit])
