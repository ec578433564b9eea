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
def test_an_edit_changes_its_line_and_nothing_else(edits, changed, tmp_path, monkeypatch):
    edited = edit_source(SCRIPT, "train.py", edits)
    before, after = (text.decode().splitlines() for text in (SCRIPT, edited))
    assert len(before) == len(after)
    assert {
        n: b for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b
    } == changed
    script = tmp_path / "folder" / "train.py"
    script.parent.mkdir()
    script.write_bytes(SCRIPT)
    monkeypatch.chdir(tmp_path)
    patch = diff(SCRIPT, edited, "folder/train.py")
    subprocess.run(["git", "apply", "-"], input=patch.encode(), check=True, cwd=tmp_path)
    assert script.read_bytes() == edited


def test_a_script_with_a_blank_in_its_name_is_patched(tmp_path, monkeypatch):
    script = tmp_path / "my folder" / "my train.py"
    script.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    edited = edit_source(SCRIPT, "my train.py", [Edit("my train.py:7", "batch", AHEAD)])
    patch = diff(SCRIPT, edited, "my folder/my train.py").encode()
    for command in (["git", "apply", "-"], ["patch", "-p1"]):
        script.write_bytes(SCRIPT)
        subprocess.run(command, input=patch, check=True, capture_output=True)
        assert script.read_bytes() == edited


def test_a_flat_map_becomes_an_interleave():
    source = """import tensorflow as t
files.map(f).flat_map(g)
flat_map(g)
data = files.flat_map(
    lambda f: t.data.TextLineDataset(f).skip(1),  # a header
).flat_map(name="é", map_func=g)
files.flat_map(g, "reading")
"""
    given = "num_parallel_calls=t.data.AUTOTUNE, deterministic=True"
    for line, before, after in (
        (2, "f).flat_map(g)", f"f).interleave(g, {given})"),
        (4, "files.flat_map(", "files.interleave("),
        (6, 'flat_map(name="é", map_func=g)', f'interleave(name="é", map_func=g, {given})'),
    ):
        edit = Edit(f"train.py:{line}", "flat_map", INTERLEAVE)
        edited = edit_source(source.encode(), "train.py", [edit]).decode()
        expected = source.replace(before, after, 1)
        if line == 4:
            expected = expected.replace("skip(1),  #", f"skip(1), {given},  #")
        assert edited == expected
    for line, reason in ((3, "is not written plainly"), (7, "may have num_parallel_calls")):
        with pytest.raises(CannotBeWritten, match=reason):
            edit_source(
                source.encode(), "train.py", [Edit(f"train.py:{line}", "flat_map", INTERLEAVE)]
            )


@pytest.mark.parametrize("call", ["files.interleave(g, 3)", "files.interleave(g, cycle_length=n)"])
def test_an_interleave_has_one_cycle_length(call):
    given = f"cycle_length=2, {PARALLEL}"
    edit = Edit("train.py:2", "interleave", given)
    source = "import tensorflow as tf\nfiles.interleave(g, block_length=3)"
    edited = edit_source(source.encode(), "train.py", [edit]).decode()
    assert edited.endswith(f"files.interleave(g, block_length=3, {given})")
    with pytest.raises(CannotBeWritten, match="may have cycle_length"):
        edit_source(f"import tensorflow as tf\n{call}".encode(), "train.py", [edit])


def test_a_script_without_a_last_line_end_is_patched(tmp_path, monkeypatch):
    source = b"import tensorflow as tf\r\nfit(data.map(f))"
    (tmp_path / "train.py").write_bytes(source)
    monkeypatch.chdir(tmp_path)
    edited = edit_source(source, "train.py", [Edit("train.py:2", "map", PARALLEL)])
    patch = diff(source, edited, "train.py")
    subprocess.run(["git", "apply", "-"], input=patch.encode(), check=True, cwd=tmp_path)
    assert (tmp_path / "train.py").read_bytes() == (
        b"import tensorflow as tf\r\nfit(data.map(f, num_parallel_calls=tf.data.AUTOTUNE))"
    )


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Edit("train.py:9", "map", PARALLEL), "may have num_parallel_calls already"),
        (Edit("train.py:10", "map", PARALLEL), "2 calls of map can be meant by train.py:10"),
        (Edit("train.py:11", "map", PARALLEL), "2 calls of map can be meant by train.py:11"),
        (Edit("train.py:11", "map", PARALLEL, given="f"), "may have num_parallel_calls already"),
        (Edit("train.py:4", "map", ".cache()", given="decode"), "no call of map can be meant"),
        (Edit("train.py:3", "map", PARALLEL), "no call of map can be meant by train.py:3"),
        (Edit("train.py:9", "batch", AHEAD), "no call of batch can be meant by train.py:9"),
        (Edit("data.py:3", "batch", AHEAD), "data.py:3 calls batch, and not train.py"),
        (Edit("lib/train.py:7", "batch", AHEAD), "lib/train.py:7 calls batch, and not train.py"),
        (Edit("", "batch", AHEAD), "a line that was not seen calls batch"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(edit, reason):
    with pytest.raises(CannotBeWritten, match=reason):
        edit_source(SCRIPT, "train.py", [edit])


@pytest.mark.parametrize("given", ["fn", "augment if train else plain", "make(8)"])
def test_a_function_may_have_another_name_where_it_is_called(given):
    source = f"import tensorflow as tf\ndef augment(x): ...\nd = d.map({given})"
    edit = Edit("train.py:3", "map", PARALLEL, given="decode")
    assert b"num_parallel_calls" in edit_source(source.encode(), "train.py", [edit])
    other = source.replace(given, "augment").encode()
    with pytest.raises(CannotBeWritten, match="no call of map can be meant"):
        edit_source(other, "train.py", [edit])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"from tensorflow import data\nd.map(f)", "imports no TensorFlow by name"),
        (b"# coding: latin-1\n# \xe9\nd.map(f)", "is not Python in UTF-8"),
    ],
)
def test_a_script_that_cannot_be_edited_is_refused(source, reason):
    line = source.count(b"\n") + 1
    with pytest.raises(CannotBeWritten, match=reason):
        edit_source(source, "train.py", [Edit(f"train.py:{line}", "map", PARALLEL)])
