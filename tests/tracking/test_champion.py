"""Whose data a run is, and which model becomes a dataset's champion, in a real store."""

import re
from dataclasses import replace

import keras
import mlflow
import numpy as np
import pandas as pd
import pytest

from tests.support.prepared import prepare
from tests.support.project import SMALL
from tests.support.rows import comparison, row
from tests.support.small_data import SPLIT, picture
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check
from throughline.data.encodings.arrays import array_feature
from throughline.data.ingest import ingest
from throughline.measurement.baseline import describe_held_out, standard_error
from throughline.plan.schema import Schema, TableColumns
from throughline.results.base import to_json
from throughline.results.train import HeldOut
from throughline.settings import DataSettings, WindowSettings
from throughline.shared.layout import Layout
from throughline.tracking.champion import (
    Score,
    find_rejection_reason,
    make_tags,
    read_score,
    score_from,
)
from throughline.tracking.comparison_run import CHAMPION, close_comparison, open_comparison
from throughline.tracking.experiments import (
    describe_task,
    get_experiment_id,
    make_run_key,
    same_data,
)
from throughline.tracking.recorder import Recorder, RunKey

pytestmark = pytest.mark.integration

OF_CHANCE = standard_error(0.25, 1000)
ON = {"split": "test", "examples": 1000}
GOOD = Score(metric="accuracy", value=0.80, constant=0.25, error=OF_CHANCE, **ON)
JUDGED = HeldOut(constant_metric=0.25, constant_stderr=OF_CHANCE, **ON)
ERRORS = Score(metric="mae", value=0.5, constant=1.0, error=0.02, **ON)


def images(folder, numbers):
    """Pictures of two classes, each drawn from its number."""
    for number in numbers:
        path = folder / ("ok", "defect")[number % 2] / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    return folder


def identity(folder):
    """What a run on a folder of images is known by."""
    settings = DataSettings(source="image_folder", path=str(folder), split=SPLIT)
    manifest = folder.with_name(f"manifest-{len(list(folder.parent.iterdir()))}")
    ingest(settings, manifest)
    return make_run_key(manifest, str(folder), pipeline="naive")


def test_a_data_set_keeps_its_experiment_when_it_grows_or_moves_and_another_one_has_its_own(
    mlflow_store, tmp_path
):
    photos = images(tmp_path / "a" / "photos", range(24))
    first = identity(photos)
    experiment = mlflow.get_experiment(get_experiment_id(first))
    assert re.fullmatch("throughline/photos-.{8}", experiment.name)
    grown = identity(images(photos, range(24, 40)))
    moved = identity(images(tmp_path / "b" / "elsewhere", range(40)))
    for same in (grown, moved, replace(grown, pipeline="other"), first):
        assert get_experiment_id(same) == experiment.experiment_id
    other = identity(images(tmp_path / "c" / "photos", range(1000, 1024)))
    another = mlflow.get_experiment(get_experiment_id(other))
    assert another.experiment_id != experiment.experiment_id
    assert another.name.startswith("throughline/photos-")
    tags = mlflow.get_experiment(experiment.experiment_id).tags
    assert {tag for tag in tags if "mlflow." not in tag} == {"data.task"}, "the UI hides the sketch"


def test_another_task_on_the_same_examples_has_an_experiment_of_its_own(mlflow_store, tmp_path):
    """What is easier is no measure of what is harder: fewer classes, a nearer horizon."""
    folder = images(tmp_path / "a" / "photos", range(24))
    two = identity(folder)
    (folder / "new").mkdir()
    picture(7000).save(folder / "new" / "1.png")
    assert get_experiment_id(two) != get_experiment_id(identity(folder))
    for old, new in (("ok", "day"), ("defect", "night")):
        (folder / old).rename(folder / new)
    assert not same_data(two.sketch, identity(folder).sketch), "labels are part of the data"
    columns = TableColumns(names=("a",))
    schema = Schema(features=(array_feature("series", (1,), "float32", columns),))
    series = {"schema": to_json(schema), "classes": []}
    near, far = (describe_task(series, WindowSettings(horizon=steps)) for steps in (1, 12))
    assert near != far and near == describe_task(series, WindowSettings(horizon=1, stride=3))


def test_sketches_tell_how_much_of_one_data_set_is_in_another():
    drawn = np.random.default_rng(0).integers(0, 2**63, 5000)

    def sketch(numbers):
        return [f"{number:016x}" for number in np.sort(numbers)[:128].tolist()]

    few, many = sketch(drawn[:1000]), sketch(drawn)
    assert same_data(few, many) and same_data(many, few)
    assert same_data(few, sketch(drawn[200:1400])), "four fifths are still there"
    assert not same_data(few, sketch(drawn[900:])), "a tenth is in both"
    assert not same_data(sketch(drawn[:100]), sketch(drawn[100:200]))


def good(value, **more):
    return replace(GOOD, value=value, **more)


FEW = {"examples": 20, "error": standard_error(0.25, 20)}
BROKEN = [good(float("nan")), good(0.5), good(float("nan"))]
# 40 windows of 512 tokens are as certain as their tokens make them.
WINDOWS = good(0.12, examples=40, constant=0.1, error=standard_error(0.1, 20_000))
CONSTANT, MEDIAN = "not better than a constant prediction", "worse than the others' median"
BEST = "worse than that of the best champion so far"


@pytest.mark.parametrize(
    ("score", "others", "earlier", "said"),
    [
        (GOOD, [], [], None),
        (good(0.79), [GOOD], [GOOD], None),
        (good(0.70), [], [GOOD], BEST),
        (good(0.90), [], [good(0.95), good(0.92), good(0.91)], BEST),  # by small steps
        (good(0.70), [GOOD] * 2, [], MEDIAN),
        (good(0.26), [], [], CONSTANT),
        (good(0.35, **FEW), [], [], CONSTANT),
        (good(float("nan")), [], [], "is nan"),
        # Of an error less is better.
        (ERRORS, [], [], None),
        (replace(ERRORS, value=0.99), [], [], CONSTANT),
        (replace(ERRORS, value=0.7), [], [ERRORS], BEST),
        (replace(ERRORS, value=0.52), [], [ERRORS], None),
        (WINDOWS, [], [replace(WINDOWS, value=0.3)], BEST),
        # Scores by another metric or on other examples, and scores that are none, are no measure.
        (good(0.70), [], [replace(GOOD, metric="mae")], None),
        (GOOD, [], [good(0.99, examples=300)], None),
        (good(0.6), BROKEN, [], None),
        (good(0.6), [*BROKEN, GOOD, GOOD], [], MEDIAN),
    ],
)
def test_a_champion_is_better_than_a_constant_and_not_worse_than_the_rest(
    score, others, earlier, said
):
    against = find_rejection_reason(score, others, earlier)
    assert against is None if said is None else said in against


def test_a_score_is_that_of_the_test_split_where_there_is_one():
    fast = row("fast", val_metric=0.9, test_metric=0.8, held_out=JUDGED)
    assert read_score(fast) == GOOD
    assert read_score(replace(fast, test_metric=None)).value == 0.9
    assert score_from(make_tags(GOOD)) == GOOD and score_from({"plan": "x"}) is None


SKETCH = tuple(f"{number:016x}" for number in range(128))
DATA = RunKey(dataset="photos", pipeline="comparison", data_digest="0123456789", sketch=SKETCH)


def compare(folder, accuracy, *, promotion="earned", data=DATA):
    """A comparison of one configuration; returns its parent run's tag and the other run."""
    recorder = Recorder(replace(data, pipeline="fast"))
    with recorder:
        recorder.log_model(folder / "model.keras")
    run = {"mlflow_run_id": recorder.run_id, "held_out": JUDGED}
    found = comparison(row("fast", val_metric=0.0, test_metric=accuracy, **run))
    report = folder / "report"
    report.mkdir(exist_ok=True)
    with open_comparison(data, "comparison") as parent:
        close_comparison(parent, data, found, report, note="n", promotion=promotion)
    return mlflow.get_run(parent).data.tags[CHAMPION], recorder.run_id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_the_champion_changes_only_for_a_model_that_is_not_worse_and_the_reason_is_logged(
    mlflow_store, monkeypatch, capsys
):
    def end(*_):
        raise KeyboardInterrupt

    def champion():
        return client.get_model_version_by_alias(name, CHAMPION)

    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(mlflow_store / "model.keras")
    client, name = mlflow.MlflowClient(), "throughline-photos-01234567"
    for accuracy, promotion, why in (
        (0.9, "none", "only on request"),
        (0.26, "earned", "not better than a constant prediction"),
    ):
        assert why in compare(mlflow_store, accuracy, promotion=promotion)[0]
        assert not client.search_registered_models()
    reason, first = compare(mlflow_store, 0.77)
    assert "version 1" in reason and champion().run_id == first
    reason, _ = compare(mlflow_store, 0.60)
    assert reason.startswith("unchanged") and "that of the best champion so far" in reason
    assert champion().run_id == first
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(mlflow.MlflowClient, "set_registered_model_alias", end)
        compare(mlflow_store, 0.95)
    assert client.get_model_version(name, "2").run_id, "it is registered, and sets no bar"
    reason, later = compare(mlflow_store, 0.76)
    assert reason.startswith("version 3") and "before: test accuracy 0.7700" in reason
    assert champion().run_id == later
    assert score_from(champion().tags) == replace(GOOD, value=0.76)
    client.set_model_version_tag(name, "3", "score.value", "none")
    assert "version 3 was set by hand" in compare(mlflow_store, 0.9)[0]
    _, asked = compare(mlflow_store, 0.78, promotion="asked for")
    assert champion().run_id == asked
    sketch = tuple(f"{number:016x}" for number in range(1000, 1128))
    compare(mlflow_store, 0.99, data=replace(DATA, data_digest="fedcba9876", sketch=sketch))
    assert champion().run_id == asked, "another dataset has its own"
    names = {model.name for model in client.search_registered_models()}
    assert names == {name, "throughline-photos-fedcba98"}
    shown = capsys.readouterr()
    assert shown.out.count("champion: ") == 8
    assert "Successfully registered" not in shown.err, "what MLflow says of it is said already"


def describe(folder, **source):
    """Data that are prepared, and their held-out split."""
    params = check({**SMALL, "data": {**SMALL["data"], **source}, "augment": [], "postprocess": []})
    stored = open_inputs(params, prepare(params, Layout(folder)))
    return stored, describe_held_out(stored)


def test_a_constant_prediction_is_the_most_frequent_class_or_the_median(tmp_path):
    draw = np.random.default_rng(2).normal(size=1000)
    pd.DataFrame({"size": draw, "price": 3 * draw}).to_csv(tmp_path / "table.csv", index=False)
    table = {"source": "table", "path": str(tmp_path / "table.csv"), "label_column": "price"}
    _, found = describe(tmp_path / "numbers", **table)
    assert found.constant_metric == pytest.approx(3 * np.sqrt(2 / np.pi), rel=0.2)
    assert 0 < found.constant_stderr < 0.3
    pixels = np.random.default_rng(1).integers(0, 256, (400, 4, 4), np.uint8)
    np.savez(tmp_path / "data.npz", x=pixels, y=np.arange(400) % 8 // 5)
    stored, found = describe(tmp_path, source="arrays", path=str(tmp_path / "data.npz"))
    assert found.split == "test" and found.examples == stored.shards.examples("test")
    assert found.constant_metric == pytest.approx(5 / 8, abs=0.15)
    assert found.constant_stderr == standard_error(found.constant_metric, found.examples)
