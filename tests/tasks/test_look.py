"""A step of a finished training is shown as the model got it, and who has seen an example."""

import argparse
import csv
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tasks.look import choose_steps
from tasks.who import find_id
from tests.support.project import run
from tests.support.trainings import Stop, params_of, train_once
from throughline.assembly.consumption import DataVersion, find_uses_in, list_interrupted
from throughline.assembly.inputs import open_inputs
from throughline.assembly.logged_training import find_recorder
from throughline.data.manifest import read_manifest
from throughline.results.receipt import Receipt, read_losses
from throughline.results.train import RunRecord, read_history
from throughline.shared.errors import MissingInput
from throughline.shared.layout import MODEL_FILE, Layout
from throughline.training.checkpoints import CHECKPOINT_FOLDER

pytestmark = pytest.mark.core


def look(folder, *options, code=0):
    command = (sys.executable, "-m", "tasks.look", "--pipeline", "optimized")
    return run(folder, *command, *options, code=code)


def who(folder, *examples):
    return run(folder, sys.executable, "-m", "tasks.who", *examples)


def test_the_batch_of_a_spike_is_shown_and_who_has_seen_its_examples(first, tmp_path):
    folder, results = first[0], Layout(first[0]).results("optimized")
    losses, receipt = read_losses(results), Receipt.read(results)
    assert receipt.steps == len(losses) == 2 * receipt.steps_per_epoch
    assert len((results / Receipt.FILE).read_bytes()) < 4096
    means = losses.reshape(2, -1)[:, :-1].mean(axis=1)  # the last batches are smaller
    trained = [row["train_loss"] for row in read_history(results)]
    np.testing.assert_allclose(means, trained, rtol=0.1)
    said = look(folder, "--worst", "1", "--out", str(tmp_path))
    step = int(re.search(r"look optimized: step (\d+), [12]/\d+, \d+ examples, loss", said)[1])
    assert "12×10×1 from" in said and "rows equal to the records of the shards" in said
    assert " differs" not in said, "it is the same program, and the same data"
    with (tmp_path / f"optimized-{step}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["changed by"] for row in rows} == {"", "flip"}
    ordered = [float(row["loss"]) for row in rows]
    assert ordered == sorted(ordered, reverse=True)
    assert Image.open(tmp_path / f"optimized-{step}.png").size[0] > 500
    assert [*folder.glob(f"mlartifacts/*/artifacts/steps/optimized-{step}.png")]
    last = look(folder, "--last")
    assert f"look optimized: step {receipt.steps}, 2/{receipt.steps_per_epoch}, " in last

    examples = read_manifest(Layout(folder).manifest).examples.set_index("split")["id"]
    seen, held_out = rows[0]["id"], examples["test"].iloc[0]
    said = who(folder, seen, held_out, "elsewhere")
    found = re.search(r"optimized \(\w{8}\): 2 epochs, 1 to 2, first in step (\d+)", said)
    look(folder, found[1], "--out", str(tmp_path))
    assert seen in (tmp_path / f"optimized-{found[1]}.csv").read_text()
    assert re.search(r"naive \(\w{8}\): 2 epochs, 1 to 2\n", said), "a stream has no known step"
    assert "held out: no training has learned from it" in said
    assert "elsewhere: in no data that is here" in said


TAKEN = {"losses": np.zeros(12), "steps": 12, "per_epoch": 5}  # a callback ended it


@pytest.mark.parametrize(
    ("step", "place"),
    [("1", 0), ("12", 11), ("1/5", 4), ("3/2", 11)]
    + [(step, None) for step in ("0", "13", "1/6", "3/3", "0/1", "4/1", "first", "-1", "1/")],
)
def test_steps_are_named_from_one_on(step, place):
    options = argparse.Namespace(worst=None, last=False, step=step)
    if place is not None:
        assert choose_steps(options, **TAKEN) == [place]
        return
    with pytest.raises(MissingInput, match=f"no step {step}: name one of 12 as N, or, with 5"):
        choose_steps(options, **TAKEN)


@pytest.mark.parametrize(
    ("losses", "said"), [(np.geomspace(1, 1e-6, 12), "no step's loss is above"), ([], "no losses")]
)
def test_without_a_spike_it_is_said_why(losses, said):
    options = argparse.Namespace(worst=1, last=False, step=None)
    with pytest.raises(MissingInput, match=said):
        choose_steps(options, **{**TAKEN, "losses": np.asarray(losses)})


def test_files_of_another_training_are_refused(first):
    folder, results = first[0], Layout(first[0]).results("optimized")
    receipt = json.loads((results / Receipt.FILE).read_text())
    other = folder / "other.json"
    other.write_text(json.dumps({**receipt, "sample": {"step": 0, "digest": "x"}}))
    said = look(folder, "1", "--receipt", str(other), code=2)
    assert "cannot be rebuilt here; find damage with `python -m tasks.verify`" in said
    other.unlink()
    assert "other.json is missing" in look(folder, "1", "--receipt", "other.json", code=2)
    assert f"commit {receipt['commit'][:12]}" in said
    model = results / MODEL_FILE
    model.chmod(0o644)
    model.write_bytes(model.read_bytes() + b"more")
    said = look(folder, "1", code=2)
    assert "model.keras is not the file that the training wrote; `dvc checkout" in said


def test_each_checkpoint_of_an_interrupted_training_has_seen_its_steps(layout, tmp_path, capsys):
    (tmp_path / "data").symlink_to(layout.root / "data")
    here, params = Layout(tmp_path), params_of()
    with pytest.raises(Stop):
        train_once(params, layout, here.results("optimized") / CHECKPOINT_FOLDER, stop_after=9)
    version = DataVersion(
        params=params, data=open_inputs(params, here), manifest=read_manifest(here.manifest)
    )
    kept = list_interrupted(here, version, "optimized", {})
    assert [one.receipt.steps for one in kept] == [9, 8]
    assert find_uses_in(kept[0].receipt, version, version.data.memmap("train", "key")[:]).keys()
    other = replace(version, params=params_of("train.seed=5"))
    assert list_interrupted(here, other, "optimized", {}) == []
    assert "may have seen them: its parameters, data or code" in capsys.readouterr().out


def test_a_file_of_the_data_is_known_by_its_id_though_it_was_rejected(tmp_path):
    (tmp_path / "sea").mkdir()
    (tmp_path / "sea" / "1.jpg").touch()
    params = params_of(f"data.path={tmp_path}")
    assert find_id(str(tmp_path / "sea" / "1.jpg"), params) == "sea/1.jpg"
    assert find_id("sea/2.jpg", params) == "sea/2.jpg"


def test_a_training_that_no_mlflow_run_has_needs_no_manifest(tmp_path):
    layout = Layout(tmp_path)
    RunRecord(mlflow_run_id=None).write(layout.results("p"))
    assert find_recorder(params_of(), layout, "p", what="the batch") is None
