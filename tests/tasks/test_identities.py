"""Identities of stages, parts of stages that stand alone, and a time series through all stages."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from benchmarks.data import presets
from tasks import build
from tasks import identities as stage
from tasks.earlier import check_identity
from tasks.identities import find_identities, write_identities
from tasks.ingest import count_splits
from tasks.own_code import find_needs, watch_own_code
from tasks.train import describe_stop, summarize
from tasks.verify import find_damaged_columns
from tests.support.lanes import slow_but_first
from tests.support.made_up import made_up
from tests.support.own_code import EVERY_RUN, MEASURED, OWN, PARAMS, differ, each, read_identities
from tests.support.prepared import prepare
from tests.support.project import ROOT, SMALL, run_stages, write_params
from tests.support.small_data import write_files
from throughline.assembly.evaluation import write_evaluation
from throughline.assembly.inputs import open_input_pipeline, open_inputs, open_stored_pipeline
from throughline.assembly.model import build_models_for
from throughline.config import cli
from throughline.config.params import OP_SECTIONS, check
from throughline.config.params_file import read_yaml
from throughline.data import examination
from throughline.data.manifest import read_manifest
from throughline.data.sources.table import scan as scan_table
from throughline.plan.ops import REGISTRY
from throughline.results.build import Difference
from throughline.results.evaluation import Evaluation
from throughline.results.train import StepTimes, TrainResult, TrainThroughput
from throughline.settings import DataSettings, TrainSettings
from throughline.shared.errors import (
    InvalidCode,
    InvalidParams,
    ObjectStoreFailed,
    WorkspaceProblem,
    WrongVersion,
)
from throughline.shared.layout import Layout
from throughline.shared.libraries import LIBRARIES

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _one_program(monkeypatch) -> None:
    """The program itself, which takes a second to read, is the same throughout."""
    monkeypatch.setattr(stage, "digest_code", lambda name: name)


@pytest.fixture
def own(tmp_path) -> Path:
    """A folder with what the identities of a project with code of its own follow from."""
    write_files(tmp_path, OWN)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    write_params(tmp_path, PARAMS)
    return tmp_path


def identities_of(folder: Path) -> dict[str, str]:
    """By the names that DVC gives the stages."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    write_identities(folder, folder / "out")
    return read_identities(folder / "out")


def test_files_that_own_code_reads_count_where_they_are_listed(own):
    watch_own_code(own)
    definition = own / "dvc.yaml"
    one = "      - my_ops.py\n"
    definition.write_text(definition.read_text().replace(one, f"{one}      - table.csv\n"))
    written, needs = [], []
    for content in ("1", "2"):
        (own / "table.csv").write_text(content)
        assert watch_own_code(own) == [] and "table.csv" in definition.read_text()
        written.append(identities_of(own))
        needs.append([find_needs(own, stage)["files"] for stage in ("snapshot", "train")])
    assert differ(*written) == EVERY_RUN
    assert [{*files} for files in needs[0]] == [{"table.csv"}] * 2
    assert all(one != other for one, other in zip(*needs, strict=True))


OWN_CODE = [
    ("helpers/amounts.py", "1", "7", EVERY_RUN),
    ("helpers/amounts.py", "BY = 1", "# by how much\nBY = 1", set()),
    ("my_augmentation.py", "1", "2", each("build", "train", "profile", "race")),
    ("layers_of_mine.py", "1", "2", each("train", "profile", "race")),
]


def test_own_code_and_what_it_imports_concerns_the_stages_that_run_it(own):
    watch_own_code(own)
    before = identities_of(own)
    for name, old, new, expected in OWN_CODE:
        text = (own / name).read_text()
        assert old in text
        (own / name).write_text(text.replace(old, new, 1))
        assert differ(before, identities_of(own)) == expected, name
        (own / name).write_text(text)


# Settings by the stages that compute from them, whatever the outputs of `build` are.
AFTER_BUILD = ("train", "profile", "race")


RUN_OPS = ("build", "train", "profile", "race")


def test_what_decides_what_build_proves_decides_all_that_is_made_of_it():
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    proven, *others = (
        {key.removesuffix(".${key}") for key in stages[name]["meta"]["settings"]}
        for name in RUN_OPS
    )
    for keys in others:
        assert not [key for key in proven if not keys & {key, key.partition(".")[0]}]


def test_every_argument_of_an_op_counts_where_the_op_runs(own):
    """Whatever the files of build show of it."""
    ops = [{name: dict.fromkeys(kind.model_fields, 1)} for name, kind in REGISTRY.items()]
    document = SMALL | dict.fromkeys(OP_SECTIONS, ops)
    write_params(own, document)
    for name, identity in find_identities(own, stages=RUN_OPS):
        counted = [identity["settings"].get(section) for section in OP_SECTIONS]
        assert counted == [ops] * len(OP_SECTIONS), name


@pytest.mark.parametrize("name", ["params.yaml", "my_ops.py"])
def test_what_is_edited_while_identities_are_written_is_noticed(own, name, monkeypatch, capsys):
    """DVC would take it for what they hold."""

    def edit(stage: str) -> str:
        with (own / name).open("a") as file:
            file.write("# later\n")
        return stage

    monkeypatch.setattr(stage, "digest_code", edit)
    monkeypatch.syspath_prepend(str(own))
    with pytest.raises(SystemExit, match="2"):
        run_stages(own, "identities")
    assert f"{name} changed while it was read" in capsys.readouterr().err


def test_results_of_no_configuration_are_named(own, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(own))
    for name in (*SMALL["pipelines"], "gone"):
        (own / "runs" / name).mkdir(parents=True)
    run_stages(own, "identities")
    said = capsys.readouterr().out
    assert "these results belong to no configuration: runs/gone; other clones race again" in said
    (own / "runs" / "gone").rmdir()
    run_stages(own, "identities")
    assert "belong to" not in capsys.readouterr().out


@pytest.mark.parametrize("name", LIBRARIES)
def test_no_stage_runs_with_another_identity_than_dvc_records(own, name, monkeypatch, capsys):
    write_params(own, SMALL)
    write_identities(own, own / "data" / "identities")
    key = "@naive" if name in MEASURED else ""
    monkeypatch.setenv("DVC_STAGE", f"../dvc.yaml:{name}{key}")
    check_identity(own)
    named = f"{name}{key.replace('@', '/')}"
    (own / "data" / "identities" / f"{named}.json").write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        run_stages(own, f"{'profiling' if name == 'profile' else name}{key}")
    assert f"what decides the results of {named} has changed since" in capsys.readouterr().err


def write_text_project(folder: Path, **tokenize: str) -> None:
    """Write what the identities of a project of texts with this tokenizer follow from."""
    shutil.copy(ROOT / "dvc.yaml", folder)
    text = {"data": {**PARAMS["data"], "source": "text_folder"}, "augment": [], "postprocess": []}
    text |= {"preprocess": [{"tokenize": tokenize}], "model": {"name": "text_classifier"}}
    write_params(folder, PARAMS | text)


@pytest.mark.parametrize("library", slow_but_first(["sentencepiece", "tensorflow-text"]))
def test_another_version_of_what_tokenizes_concerns_the_stages_that_tokenize(tmp_path, library):
    (tmp_path / "uv.lock").write_text(f'[[package]]\nname = "{library}"\nversion = "0.1"\n')
    write_text_project(tmp_path, kind="bytes")
    assert not [text for text in identities_of(tmp_path).values() if library in text]
    write_text_project(tmp_path, kind="sentencepiece")
    with pytest.raises(WrongVersion, match=f"{library} is .* names 0.1"):
        identities_of(tmp_path)
    (tmp_path / "uv.lock").unlink()
    identities = identities_of(tmp_path)
    assert {name for name, text in identities.items() if library in text} == EVERY_RUN


def test_the_file_of_a_tokenizer_counts_for_the_stages_that_run_it(tmp_path):
    (tmp_path / "words.txt").write_text("[UNK]\nwolf\n")
    write_text_project(tmp_path, kind="wordpiece", model="words.txt")
    listed = "words.txt decides results and is now listed in dvc.yaml"
    assert watch_own_code(tmp_path) == [listed]
    written = []
    for words in ("[UNK]\nwolf\n", "[UNK]\nlamb\n"):
        (tmp_path / "words.txt").write_text(words)
        written.append(identities_of(tmp_path))
    assert differ(*written) == EVERY_RUN


def test_the_largest_fraction_that_is_read_concerns_the_snapshot(tmp_path):
    shutil.copy(ROOT / "dvc.yaml", tmp_path)

    def identities(*fractions):
        pipelines = {
            f"part{number}": SMALL["pipelines"]["optimized"] | {"snapshot": {"fraction": fraction}}
            for number, fraction in enumerate(fractions)
        }
        write_params(tmp_path, SMALL | {"pipelines": pipelines | {"naive": {"read": "shards"}}})
        return identities_of(tmp_path)

    before = identities(0.3, 0.5)
    own = [
        {"race", "report", *(f"{stage}@part{number}" for stage in MEASURED)} for number in range(2)
    ]
    assert differ(before, identities(0.2, 0.5)) == own[0]
    assert differ(before, identities(0.3, 0.6)) == own[1] | {"snapshot"}


def test_own_code_is_listed_by_itself_and_taken_off_when_it_is_gone(own):
    expected = sorted(name for name, text in OWN.items() if text and name != "unused.py")
    assert [change.split()[0] for change in watch_own_code(own)] == expected
    assert watch_own_code(own) == []
    (own / "layers_of_mine.py").unlink()
    assert watch_own_code(own) == ["layers_of_mine.py is gone, and removed from dvc.yaml"]
    listed = read_yaml(own / "dvc.yaml")["stages"]["identities"]["deps"]
    assert set(expected) - set(listed) == {"layers_of_mine.py"}


@pytest.mark.parametrize("name", ["a #1.h5", "a: b.h5", "[a].h5", 'it\'s "größe".h5', "1.5"])
def test_a_file_of_any_name_is_listed_until_it_is_gone(tmp_path, name):
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    write_params(tmp_path, PARAMS | {"model": {"name": "mlp", "weights": name}})
    (tmp_path / name).touch()
    assert watch_own_code(tmp_path) == [f"{name} decides results and is now listed in dvc.yaml"]
    assert watch_own_code(tmp_path) == []
    assert read_yaml(tmp_path / "dvc.yaml")["stages"]["identities"]["deps"][-1] == name
    (tmp_path / name).rename(tmp_path / "renamed.h5")
    with pytest.raises(WorkspaceProblem, match=r"is gone, but dvc\.yaml lists it"):
        watch_own_code(tmp_path)


def test_a_difference_counts_every_example_alike(monkeypatch):
    of_splits = {
        "train": Difference(mean=1.0, max=3.0, examples=30),
        "test": Difference(mean=5.0, max=9.0, examples=10),
    }
    monkeypatch.setattr(build, "measure_difference", lambda split, _: of_splits[split])
    splits = {split: split for split in of_splits}
    assert build._measure_difference(splits, splits) == Difference(mean=2.0, max=9.0, examples=40)


def test_the_classes_of_an_epoch_are_those_of_its_rows():
    labels, classes = np.array([1, 0, 2, 1]), ("a", "b", "c")
    data = SimpleNamespace(shards=SimpleNamespace(classes=classes), memmap=lambda *_: labels)
    pipeline = SimpleNamespace(data=data, split="train")
    found = build.class_frequencies(pipeline, np.array([0, 3, 1, 0]))
    assert found == {"a": 0.25, "b": 0.75, "c": 0.0}


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"accuracy": 0.5, "loss": 2.0}, "test accuracy 0.5000"),
        ({"accuracy": 0.5, "perplexity": 9.0}, "test accuracy 0.5000, test perplexity 9.0000"),
        ({}, "validation accuracy 0.7500"),
    ],
)
def test_a_training_is_summed_up_by_the_test_split_or_else_by_validation(test, said):
    last = {"accuracy": 0.9, "val_accuracy": 0.75}
    result = replace(made_up(TrainResult), metric="accuracy", last_epoch=last, test=test)
    assert summarize(replace(result, throughput=None)) == f"no epoch timed, {said}"
    few = " (19 steps: mostly starts and ends of epochs)"
    for warm, steps, doubt in (
        (9, 20, ""),
        (9, 19, few),
        (4, 20, " (its one epoch, with the start)"),
    ):
        rates = TrainThroughput(train_examples_per_s=warm, cold_examples_per_s=4)
        step = StepTimes(ms_p50=1.0, ms_p95=1.0, ms_p99=1.0, count=steps)
        summary = summarize(replace(result, throughput=rates, step=step))
        assert summary == f"{warm} examples/s{doubt}, {said}"


@pytest.mark.parametrize(("rows", "said"), [(3, "within its last epoch"), (2, "after 2 of 3")])
def test_where_a_training_was_stopped_is_said(rows, said):
    stopped = SimpleNamespace(ended_by="train.callbacks", rows=[{}] * rows)
    assert said in describe_stop(stopped, TrainSettings(epochs=3))


@pytest.mark.parametrize("splits", [("train", "test"), ()])
def test_a_store_that_is_away_is_said_once_also_of_what_was_fetched(splits):
    def fail(*_):
        raise ObjectStoreFailed("it is away")

    snapshot = SimpleNamespace(splits=splits, columns=(SimpleNamespace(name="image"),))
    fetched = SimpleNamespace(verify_regions=fail)
    stored = SimpleNamespace(snapshot=snapshot, memmap=fail, fetched=fetched)
    assert [str(one) for one in find_damaged_columns(stored)] == ["it is away"]


@pytest.mark.parametrize(
    ("code", "error"), [(0, InvalidCode), (None, InvalidCode), (3, SystemExit)]
)
def test_own_code_that_ends_a_stage_without_an_error_is_named_with_its_line(code, error):
    with pytest.raises(error) as ended, cli.refuse_early_exit():
        sys.exit(code)
    said = str(ended.value)
    assert said == "3" or re.search(r"test_identities\.py, line \d+: sys\.exit\(code\) exits", said)


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
        features, label, key = (
            np.concatenate([batch[part] for batch in batches])
            for part in ("features", "label", "key")
        )
        assert features.shape == (pipe.examples, 8, 3) and label.shape == (pipe.examples, 2, 1)
        np.testing.assert_array_equal(key, np.arange(begin, end - 9, 3))
        np.testing.assert_array_equal(features[:, :, 0], key[:, None] + np.arange(8))
        np.testing.assert_array_equal(label[:, :, 0], key[:, None] + 8.25 + np.arange(2))
        assert key.max() + 10 <= end


def test_no_window_crosses_a_gap_of_a_series(tmp_path):
    times = np.concatenate([np.arange(300), np.arange(310, 1010)])  # a gap in time before row 300
    cells = [f"{row}" if row not in (100, 101, 650) else "" for row in range(1000)]
    lines = (
        f"{time},{cell},{row}" for row, (time, cell) in enumerate(zip(times, cells, strict=True))
    )
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
            features = np.concatenate(
                [batch["features"] for batch in pipe.dataset().as_numpy_iterator()]
            )
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
    assert evaluation.metrics == pytest.approx(
        {f"test/mae/{name}": error for name, error in errors.items()}
    )
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


@pytest.mark.parametrize(
    ("labels", "setting", "kind", "classes"),
    [
        ([0, 1, 2] * 10, "auto", "class", ["0", "1", "2"]),
        (range(1000, 1030), "class", "class", [str(year) for year in range(1000, 1030)]),
        (range(1000, 1030), "number", "number", []),
        ([0.0, 1.0, None] * 10, "auto", "class", ["0", "1"]),
        ([151.0 + row for row in range(30)], "auto", "number", []),
        ([0.5, 1.0, 1.5] * 10, "auto", "number", []),
        ([0.5, 1.0, 1.5] * 10, "class", "class", ["0.5", "1", "1.5"]),
        ([True, False, True] * 10, "auto", "class", ["False", "True"]),
    ],
)
def test_what_a_label_is(tmp_path, labels, setting, kind, classes):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"size": np.arange(30.0) / 2, "y": list(labels)}).to_parquet(path)
    settings = DataSettings(source="table", path=str(path), label_column="y", label_kind=setting)
    scanned = scan_table(settings)
    assert (scanned.schema.target.encoding.name, list(scanned.classes)) == (kind, classes)
