"""A changed copy next to the script, and the patch that it proves."""

import itertools
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

import whowaits
from tests.support.small_data import write_files
from whowaits.changes import patch, proof, serve
from whowaits.changes.advice import DRAWN_ONCE, ORDER, SAME, THREADS, Edit, Tried
from whowaits.changes.edits import edit_source
from whowaits.changes.proof import NoPatch, Proof, prove, prove_side_by_side
from whowaits.report import Report

pytestmark = pytest.mark.integration

PARALLEL = "num_parallel_calls=8"


class Answers:
    """A training in this process that does what it is asked for, at the rates that are given."""

    def __init__(self, dataset, *rates):
        self._served = serve.Served(next, Mock(dataset=dataset, steps=None), Mock())
        self._rates = itertools.cycle(rates or [1.0])

    def ask(self, name, *arguments):
        if name == "rate":
            return next(self._rates)
        return getattr(self._served, f"ask_{name}")(*arguments)


def change_of(adds=PARALLEL, meaning=SAME, number=0, gain=2, file="train it.py"):
    where, text = f"{file}:3", f"map(double): {adds}"
    edits = (Edit(where, "map", adds),)
    return Tried(text, meaning, "", "", where, gain, 2, 2, edits=edits, kind="map", number=number)


def prove_changed(before, after, rates=(2.0,), change=None):
    copy = Answers(after, *rates)
    return prove_side_by_side(Answers(before), copy, change=change or change_of(), step_s=0.01)


def numbers(seed=7):
    return tf.data.Dataset.range(80).shuffle(80, seed=seed)


def double(number):
    return number * 2


def jitter(number):
    return number + tf.random.uniform((), 0, 99, tf.int64, seed=3)


def draw(number):
    drawn = tf.numpy_function(lambda n: n + np.random.default_rng().integers(99), [number], "int64")
    return tf.ensure_shape(drawn, ())


def test_a_faster_copy_with_the_same_examples_is_proven_and_it_is_said_what_differs():
    before, copy = numbers().map(double).batch(8), numbers().map(double, 2).batch(8)
    equal = "the batches of two epochs are equal (10 each)"
    assert prove_changed(before, copy) == Proof(2.0, 2.0, 2.0, 9, equal)
    found = prove_changed(before, numbers(seed=8).map(double, 2).batch(8))
    same = "of two epochs hold the same examples, in another order"
    assert found.data == f"the batches {same}"
    before = numbers().map(double).map(jitter).batch(8)
    after = numbers().map(double).cache().shuffle(80, seed=5).map(jitter).batch(8)
    found = prove_changed(before, after, change=change_of(".cache().shuffle(80)", ORDER, number=1))
    drawn = "random draws after that fall on other examples"
    assert found.data == f"the elements after map(double) {same}; {drawn}"


def test_the_first_batches_of_a_long_epoch_prove_that_all_are_equal(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(serve, "perf_counter", lambda: float(next(ticks)))
    found = prove_changed(numbers().map(double).batch(1), numbers().map(double, 2).batch(1))
    assert found.data == "the first 41 batches are equal; an epoch was too long to compare all"


@pytest.mark.parametrize(
    ("after", "rates", "change", "reason"),
    [
        (lambda: numbers().map(draw, 2), [2.0], [], "the copy's batches differ from"),
        (lambda: numbers().map(double, 2), [1.2, 1.0], [], "the lower end must be at least 1.1"),
        (lambda: numbers().map(lambda n: n), [2.0], [".cache()", DRAWN_ONCE],
         "the edited call does not make the transformation"),
    ],
    ids=["drawn", "no faster", "another call"],
)  # fmt: skip
def test_no_patch_without_proof(after, rates, change, reason):
    before = numbers().map(double).batch(8)
    with pytest.raises(NoPatch, match=reason):
        prove_changed(before, after().batch(8), rates, change_of(*change))


SCRIPT = b"import tensorflow as tf\r\n\r\ndata = tf.data.Dataset.range(80).map(double)"


@pytest.fixture
def print_patch(tmp_path, monkeypatch):
    """Runs `--patch` on a script whose changes are known, and what the proof comes to."""
    monkeypatch.chdir(tmp_path)

    def run(changes, outcome=None):
        monkeypatch.setattr(patch, "prove", Mock(side_effect=[outcome]))
        report = Report("my folder/train it.py", "model.fit", "input-bound", changes=changes or ())
        printed = report.json if changes is not None else "no report"
        write_files(tmp_path, {report.script: SCRIPT, "start.py": f"print({printed!r})"})
        return patch.print_patch([sys.executable, "start.py"], {})

    return run


def test_a_proven_change_is_printed_as_a_patch_that_applies(print_patch, capfdbinary):
    proven = Proof(2.0, 1.5, 2.5, 9, "the batches are equal")
    changes = change_of(gain=9, file="lib.py"), change_of(meaning=THREADS)
    assert print_patch(changes, proven) == 0
    printed = capfdbinary.readouterr()
    subprocess.run(["git", "apply", "-"], input=printed.out, check=True)
    added = f"(double, {PARALLEL})".encode()
    assert Path("my folder/train it.py").read_bytes() == SCRIPT.replace(b"(double)", added)
    assert b"2.00 \xc3\x97 as fast (1.50 to 2.50, 9 pairs); the batches are equal" in printed.err


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [
        ([change_of()], NoPatch("not faster"), "no patch: not faster"),
        ([], None, "no change of the input was tried"),
        ([change_of(meaning=DRAWN_ONCE)], None, "no change that was tried can be"),
        (None, None, ""),
    ],
    ids=["unproven", "untried", "unsafe", "no report"],
)
def test_no_patch_is_printed_else(print_patch, capfd, changes, outcome, said):
    assert print_patch(changes, outcome) == 5
    printed = capfd.readouterr()
    assert not printed.out and said in printed.err


TRAINS = """
import keras, numpy as np, tensorflow as tf

def load(number):
    x = tf.numpy_function(lambda n: np.full(8, n, "float32"), [number], tf.float32)
    return tf.ensure_shape(x, (8,)), tf.constant(0)

data = tf.data.Dataset.range(80).shuffle(80).map(load).batch(8)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=3, verbose=0)
"""


@pytest.mark.slow
def test_a_script_and_its_copy_train_in_processes_that_end(tmp_path, monkeypatch):
    for name in ("WORTH", "LEAST_PAIRS", "PAIRS_S"):  # one pair, however fast on this machine
        monkeypatch.setattr(proof, name, 0.1)
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    copies, start = [], proof._Copy.__init__
    monkeypatch.setattr(
        proof._Copy, "__init__", lambda copy, *given: (copies.append(copy), start(copy, *given))[0]
    )
    line = TRAINS[: TRAINS.index(".map(")].count("\n") + 1
    copy = edit_source(TRAINS.encode(), "train.py", [Edit(f"train.py:{line}", "map", PARALLEL)])

    start_script = [sys.executable, str(Path(whowaits.__file__).with_name("start.py"))]
    asked = {"script": str(script), "fail_if": []}
    found = prove(start_script, asked, copy=copy, change=change_of(), step_s=0.01)
    assert found.data == "the batches of two epochs are equal (10 each)" and found.pairs == 1
    assert [each._process.returncode is not None for each in copies] == [True, True]
    assert list(tmp_path.iterdir()) == [script]
    broken = copy.replace(b".batch(8)", b".no_such()")
    with pytest.raises(NoPatch, match=r"the patched copy ended: AttributeError: .*no_such"):
        prove(start_script, asked, copy=broken, change=change_of(), step_s=0.01)
