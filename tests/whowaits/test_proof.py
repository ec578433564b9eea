"""A changed copy next to the script, both run: `whowaits.changes.proof`, `whowaits.changes.serve`,
`whowaits.changes.patch`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import whowaits
from whowaits.changes.advice import ORDER, SAME, Edit, Tried
from whowaits.changes.edits import edit_source
from whowaits.changes.proof import NoPatch, _Copy, _refuse, prove
from whowaits.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = """
import gc, time; gc.disable()
import keras, numpy as np, tensorflow as tf; gc.enable(); gc.freeze()

def wait(number):
    time.sleep(0.01)
    return np.full(64, number, "float32")

def load(number):
    x = tf.numpy_function(wait, [number], tf.float32)
    return tf.ensure_shape(x, (64,)), tf.constant(0)

def jitter(x, y):
    return x + tf.random.uniform((64,)), y

data = tf.data.Dataset.range(80).shuffle(80)
data = data.map(load)
data = data.map(jitter)
data = data.batch(8)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=3, verbose=0)
"""
START = Path(whowaits.__file__).with_name("start.py")
PARALLEL = "num_parallel_calls=8"  # of sleeps: faster on any machine


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch) -> None:
    for name in ("PAIRS", "LEAST_PAIRS"):
        monkeypatch.setattr(f"whowaits.changes.proof.{name}", 3)


def prove_edit(folder, added, *, to="map(load)", code=SCRIPT, keeps="", meaning=ORDER, kind="map"):
    """What comes out for a change of a line of the script."""
    line = 1 + code[: code.index(f"data.{to}")].count("\n")
    edit = Edit(f"train.py:{line}", to.partition("(")[0], added)
    change = Tried(
        text=f"{to}: {added}", meaning=meaning, says="", keeps=keeps, where=edit.where, gain=2,
        low=2, high=2, edits=(edit,), kind=kind, number=int("jitter" in code and kind == "map"),
    )  # fmt: skip
    script = folder / "train.py"
    script.write_text(code)
    asked = {
        "script": str(script), "seconds": 9, "training": 1, "keep": False, "tries": True,
        "as_json": True, "fail_if": [],
    }  # fmt: skip
    copy = edit_source(code.encode(), "train.py", [edit])
    return prove([sys.executable, str(START)], asked, copy=copy, change=change, step_s=0.04)


def test_a_faster_copy_with_equal_batches_is_proven(tmp_path):
    proof = prove_edit(tmp_path, PARALLEL)
    assert proof.low >= 1.1 and proof.pairs == 3, proof
    assert proof.data == "the batches of two epochs are equal (10 each)"


def test_another_order_is_said_and_so_is_what_is_drawn_after_it(tmp_path):
    proof = prove_edit(tmp_path, ".cache().shuffle(80)", keeps="1 MiB")
    assert proof.data == (
        "the elements after map(load) of two epochs hold the same, in another order; what is drawn"
        " after that falls on other examples"
    )


def test_a_copy_that_is_ended_leaves_no_part_of_a_cache(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.replace("map(load)", f"map(load).repeat(99).cache({str(tmp_path / 'kept')!r})")
    )
    asked = {
        "script": str(script), "seconds": 9, "training": 1, "tries": True, "as_json": True,
        "fail_if": [],
    }  # fmt: skip
    with _Copy([sys.executable, str(START)], asked) as copy:
        assert not copy.ask("changed", "batch", 0, "num_parallel_calls=2"), "it trains"
        assert list(tmp_path.glob("kept*.lockfile"))
    assert list(tmp_path.iterdir()) == [script]


READING = """
import tempfile
from pathlib import Path

def read(file):
    return tf.data.TextLineDataset(file).map(lambda line: load(tf.strings.to_number(line)))

files = [f"{tempfile.gettempdir()}/whowaits-{number}.txt" for number in range(4)]
for number, file in enumerate(files):
    Path(file).write_text("\\n".join(map(str, range(number, 80, 4))))
data = tf.data.Dataset.from_tensor_slices(files)
data = data.flat_map(read)
"""


def test_files_that_are_read_at_once_are_proven_up_to_order(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    begin, end = SCRIPT.index("data = tf.data"), SCRIPT.index("data = data.batch")
    code = SCRIPT[:begin] + READING + SCRIPT[end:]
    added = "interleave(cycle_length=4, num_parallel_calls=4, deterministic=True)"
    proof = prove_edit(tmp_path, added, to="flat_map(read)", code=code, kind="interleave")
    assert proof.low >= 1.1
    assert proof.data == "the batches of two epochs hold the same, in another order"


@pytest.mark.parametrize(
    ("added", "code", "reason"),
    [
        (
            ".cache()",
            SCRIPT.replace("np.full(64, number", "np.full(64, time.time() % 1"),
            "are others",
        ),
        (".prefetch(1)", SCRIPT.replace("0.01", "0.0"), "the lower end must be 1.1 at least"),
        (".no_such()", SCRIPT, "the patched copy ended: AttributeError: .*no_such"),
    ],
    ids=["drawn", "no faster", "fails"],
)
def test_no_patch_without_proof(tmp_path, added, code, reason):
    with pytest.raises(NoPatch, match=reason):
        prove_edit(tmp_path, added, code=code, meaning=SAME)


@pytest.mark.parametrize(("whole", "reason"), [(True, "are others"), (False, "is too long")])
def test_batches_that_were_not_all_compared_are_not_called_others(whole, reason):
    assert reason in str(_refuse({"whole": True}, {"whole": whole}))


def test_the_command_prints_a_patch_that_applies_also_of_a_module(tmp_path, monkeypatch, capfd):
    # Few changes are open, so that few are tried.
    code = SCRIPT.replace("map(jitter)", "batch(8, num_parallel_calls=2)")
    code = code.replace("data.batch(8)\n", "data.prefetch(2)\n")
    wait = code[code.index("def wait") : code.index("def load")]
    package, command = tmp_path / "pkg", ["--python", sys.executable, "--patch", "-m", "pkg.train"]
    package.mkdir()
    (package / "steps.py").write_text(f"import time\nimport numpy as np\n{wait}")
    script = package / "train.py"
    script.write_text(code.replace(wait, "from .steps import wait\n\n"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("whowaits.callers.HERE", str(tmp_path))  # a command starts there
    assert main(["--seconds", "3", *command]) == 0
    printed = capfd.readouterr()
    subprocess.run(["git", "apply", "-"], input=printed.out, text=True, check=True)
    assert "model.fit at pkg/train.py:" in printed.err
    assert (
        "data.map(load, num_parallel_calls=tf.data.AUTOTUNE)" in script.read_text()
        or "map(load).cache().shuffle(80)" in script.read_text()
    )
    assert "called from several threads at once; --patch proves" in printed.err
    assert "× as fast" in printed.err
    script.write_text("print('nothing')")
    assert main(command) == 2 and not capfd.readouterr().out
