"""A time series through all stages."""

import numpy as np
import pytest

from benchmarks.data import presets
from tasks.ingest import count_splits
from tests.support.lanes import slow_but_first
from tests.support.prepared import prepare
from tests.support.project import SMALL
from throughline.assembly.evaluation import write_evaluation
from throughline.assembly.inputs import open_input_pipeline, open_inputs, open_stored_pipeline
from throughline.assembly.model import build_models_for
from throughline.config.params import check
from throughline.data import examination
from throughline.data.manifest import read_manifest
from throughline.results.evaluation import Evaluation
from throughline.shared.errors import InvalidParams
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration


def opened(folder, params):
    """Run the data stages in `folder` and open what they wrote."""
    layout = prepare(params, Layout(folder), min_shards=3)
    return layout, open_inputs(params, layout)


def series_document(path, **window):
    return SMALL | {
        "data": {**SMALL["data"], "source": "time_series", "path": str(path)},
        "augment": [],
        "postprocess": ["standardize"],
        "window": {"length": 8, "horizon": 2, "stride": 3, "targets": ["column_1"], **window},
        "pipelines": presets("time_series"),
    }


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """A series whose every value says when it was and which column it is."""
    folder = tmp_path_factory.mktemp("series")
    values = np.arange(1000, dtype=np.float32)[:, None] + np.asarray([0.0, 0.25, 0.5], np.float32)
    np.save(folder / "series.npy", values)
    params = check(series_document(folder / "series.npy"))
    return params, *opened(folder, params)


@pytest.mark.parametrize("name", slow_but_first(["naive", "windowed"]))
def test_windows_hold_the_steps_before_their_horizon_and_never_cross_splits(series, name):
    params, _, stored = series
    bounds = {"train": (0, 600), "validation": (600, 800), "test": (800, 1000)}
    for split, (begin, end) in bounds.items():
        pipe = open_input_pipeline(params, name, stored, split=split, purpose="compare")
        batches = list(pipe.dataset().as_numpy_iterator())
        parts = ("features", "label", "key")
        features, label, key = (np.concatenate([one[part] for one in batches]) for part in parts)
        assert features.shape == (pipe.examples, 8, 3) and label.shape == (pipe.examples, 2, 1)
        np.testing.assert_array_equal(key, np.arange(begin, end - 9, 3))
        np.testing.assert_array_equal(features[:, :, 0], key[:, None] + np.arange(8))
        np.testing.assert_array_equal(label[:, :, 0], key[:, None] + 8.25 + np.arange(2))
        assert key.max() + 10 <= end


def test_no_window_crosses_a_gap_of_a_series(tmp_path):
    times = np.concatenate([np.arange(300), np.arange(310, 1010)])  # a gap in time before row 300
    cells = [f"{row}" if row not in (100, 101, 650) else "" for row in range(1000)]
    rows = enumerate(zip(times, cells, strict=True))
    lines = (f"{time},{cell},{row}" for row, (time, cell) in rows)
    (tmp_path / "series.csv").write_text("\n".join(["time,a,b", *lines]))
    document = series_document(tmp_path / "series.csv", targets=["b"])
    document["data"] |= {"time_column": "time", "missing": "cut", "numeric": ["a", "b"]}
    params = check(document)
    layout, stored = opened(tmp_path, params)
    said = "the series is cut at 3 rows with an empty cell and 1 gap in time"
    assert read_manifest(layout.manifest).stats["problems"] == [f"{said}: no window crosses them"]
    missing = {100, 101, 300, 650}  # rows that are left out, or before which time steps are missing
    kept = [row for row in range(1000) if cells[row]]
    for split in ("train", "validation", "test"):
        steps, kept = np.split(kept, [stored.shards.examples(split)])
        starts = [
            steps[start]
            for start in range(0, len(steps) - 9, 3)
            if missing.isdisjoint(range(steps[start] + 1, steps[start + 9] + 1))
        ]
        for name in ("naive", "windowed"):
            pipe = open_input_pipeline(params, name, stored, split=split, purpose="compare")
            batches = pipe.dataset().as_numpy_iterator()
            features = np.concatenate([batch["features"] for batch in batches])
            assert pipe.examples == len(starts) == len(features)
            np.testing.assert_array_equal(features[:, :, 1], np.add.outer(starts, range(8)))


def test_a_series_of_many_blocks_and_shards_lies_in_the_order_of_time(tmp_path, monkeypatch):
    monkeypatch.setattr(examination, "STEPS_PER_BLOCK", 100)
    np.save(tmp_path / "series.npy", np.arange(1000, dtype=np.float32)[:, None].repeat(3, 1))
    params = check(series_document(tmp_path / "series.npy"))
    layout, stored = opened(tmp_path, params)
    manifest = read_manifest(layout.manifest)
    assert count_splits(manifest) == "600 train, 200 validation, 200 test time steps"
    assert len(stored.shards.for_split("train")) > 1
    np.testing.assert_array_equal(stored.memmap("train", "key"), np.arange(600))
    np.testing.assert_array_equal(stored.memmap("train", "features")[:, 1], np.arange(600))
    standardize = stored.bind_to_data(params.postprocess)[0]
    np.testing.assert_allclose(standardize.mean, [np.arange(600).mean()] * 3, rtol=1e-6)
    np.testing.assert_allclose(standardize.deviation, [np.arange(600).std()] * 3, rtol=1e-6)


def test_each_target_of_a_series_has_an_error_of_its_own(series, tmp_path):
    _, layout, stored = series
    params = check(series_document(layout.root / "series.npy", targets=["column_0", "column_2"]))
    models = build_models_for(params, stored)
    name = next(iter(params.pipelines))
    evaluation = write_evaluation(models, params, name, stored, layout, tmp_path / "evaluation")
    pipe = open_stored_pipeline(params, name, stored, split="test")
    errors = np.concatenate(
        [np.abs(models.full_model(each["features"]) - each["label"]) for each in pipe.dataset()]
    )
    means = errors.mean(axis=(0, 1), dtype=np.float64)
    errors = dict(zip(("column_0", "column_2"), means, strict=True))
    assert evaluation.mae_by_target == pytest.approx(errors)
    metrics = {f"test/mae/{name}": error for name, error in errors.items()}
    assert evaluation.metrics == pytest.approx(metrics)
    assert Evaluation.read(tmp_path) == evaluation


def test_windows_longer_than_a_split_and_unknown_targets_are_refused(series):
    _, layout, stored = series
    for window, said in (
        ({"length": 500}, "the validation split has 200 time steps, fewer"),
        ({"targets": ["load"]}, "load is not a column"),
    ):
        params = check(series_document(layout.root / "series.npy", **window))
        with pytest.raises(InvalidParams, match=said):
            open_input_pipeline(params, "naive", stored, split="train", purpose="train")
