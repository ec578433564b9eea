"""Identities of stages, and parts of stages that stand alone."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tasks import build
from tasks import identities as stage
from tasks.earlier import check_identity
from tasks.identities import find_identities, write_identities
from tasks.own_code import find_needs, watch_own_code
from tasks.train import describe_stop, summarize
from tasks.verify import find_damaged_columns
from tests.support.lanes import slow_but_first
from tests.support.made_up import made_up
from tests.support.own_code import EVERY_RUN, MEASURED, OWN, PARAMS, differ, each, read_identities
from tests.support.project import ROOT, SMALL, run_stages, write_params
from tests.support.small_data import write_files
from throughline.config import cli
from throughline.config.params import OP_SECTIONS
from throughline.config.params_file import read_yaml
from throughline.plan.ops import REGISTRY
from throughline.results.build import Difference
from throughline.results.train import StepTimes, TrainResult, TrainThroughput
from throughline.settings import TrainSettings
from throughline.shared.errors import InvalidCode, ObjectStoreFailed, WorkspaceProblem, WrongVersion
from throughline.shared.libraries import LIBRARIES

pytestmark = pytest.mark.integration

RUN_OPS = ("build", "train", "profile", "race")


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
    shutil.rmtree(folder / "out", ignore_errors=True)
    write_identities(folder, folder / "out")
    return read_identities(folder / "out")


@pytest.mark.parametrize("tokenizer", [False, True])
def test_a_file_that_own_code_or_a_tokenizer_reads_counts_where_it_is_listed(own, tokenizer):
    (own / "table.csv").touch()
    if tokenizer:
        write_text_project(own, kind="wordpiece", model="table.csv")
    watch_own_code(own)
    if not tokenizer:
        text, one = (own / "dvc.yaml").read_text(), "      - my_ops.py\n"
        (own / "dvc.yaml").write_text(text.replace(one, f"{one}      - table.csv\n"))
    written, needs = [], []
    for content in ("1", "2"):
        (own / "table.csv").write_text(content)
        assert watch_own_code(own) == [] and "table.csv" in (own / "dvc.yaml").read_text()
        written.append(identities_of(own))
        needs.append([find_needs(own, stage)["files"] for stage in ("snapshot", "train")])
    assert differ(*written) == EVERY_RUN
    assert [{*files} for files in needs[0]] == [{"table.csv"}] * 2
    assert all(one != other for one, other in zip(*needs, strict=True))


def test_own_code_and_what_it_imports_concerns_the_stages_that_run_it(own):
    watch_own_code(own)
    before = identities_of(own)
    for name, old, new, expected in (
        ("helpers/amounts.py", "1", "7", EVERY_RUN),
        ("helpers/amounts.py", "BY = 1", "# by how much\nBY = 1", set()),
        ("my_augmentation.py", "1", "2", each(*RUN_OPS)),
        ("layers_of_mine.py", "1", "2", each("train", "profile", "race")),
    ):
        text = (own / name).read_text()
        assert old in text
        (own / name).write_text(text.replace(old, new, 1))
        assert differ(before, identities_of(own)) == expected, name
        (own / name).write_text(text)


def test_what_decides_what_build_proves_decides_all_that_is_made_of_it():
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    proven, *others = (
        {key.removesuffix(".${key}") for key in stages[name]["meta"]["settings"]}
        for name in RUN_OPS
    )
    for keys in others:
        assert not [key for key in proven if not keys & {key, key.partition(".")[0]}]


def test_the_template_of_the_page_decides_the_report():
    report = read_yaml(ROOT / "dvc.yaml")["stages"]["report"]
    assert "throughline/reporting/report.html" in report["deps"]


def test_every_argument_of_an_op_counts_where_the_op_runs(own):
    ops = [{name: dict.fromkeys(kind.model_fields, 1)} for name, kind in REGISTRY.items()]
    write_params(own, SMALL | dict.fromkeys(OP_SECTIONS, ops))
    for name, identity in find_identities(own, stages=RUN_OPS):
        counted = [identity["settings"].get(section) for section in OP_SECTIONS]
        assert counted == [ops] * len(OP_SECTIONS), name


@pytest.mark.parametrize("name", ["params.yaml", "my_ops.py"])
def test_what_is_edited_while_identities_are_written_is_noticed(own, name, monkeypatch, capsys):
    def edit(stage: str) -> str:
        (own / name).write_text((own / name).read_text() + "# later\n")
        return stage

    monkeypatch.setattr(stage, "digest_code", edit)
    monkeypatch.syspath_prepend(own)
    with pytest.raises(SystemExit, match="2"):
        run_stages(own, "identities")
    assert f"{name} changed while it was read" in capsys.readouterr().err


def test_results_of_no_configuration_are_named(own, monkeypatch, capsys):
    monkeypatch.syspath_prepend(own)
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
    assert f"decide the results of {named} have changed since" in capsys.readouterr().err


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


def test_the_largest_fraction_that_is_read_concerns_the_snapshot(own):
    def identities(*fractions):
        parts = [{"read": "snapshot", "snapshot": {"fraction": part}} for part in fractions]
        write_params(own, SMALL | {"pipelines": dict(zip("ab", parts, strict=True))})
        return identities_of(own)

    before = identities(0.3, 0.5)
    concerned = {"race", "report", *(f"{stage}@a" for stage in MEASURED)}
    assert differ(before, identities(0.2, 0.5)) == concerned
    concerned = {"snapshot", "race", "report", *(f"{stage}@b" for stage in MEASURED)}
    assert differ(before, identities(0.3, 0.6)) == concerned


def test_own_code_is_listed_by_itself_and_taken_off_when_it_is_gone(own):
    expected = sorted(name for name, text in OWN.items() if text and name != "unused.py")
    assert [change.split()[0] for change in watch_own_code(own)] == expected
    assert watch_own_code(own) == []
    (own / "layers_of_mine.py").unlink()
    assert watch_own_code(own) == ["layers_of_mine.py is gone, and removed from dvc.yaml"]
    listed = read_yaml(own / "dvc.yaml")["stages"]["identities"]["deps"]
    assert set(expected) - set(listed) == {"layers_of_mine.py"}


@pytest.mark.parametrize("name", ["a #1.h5", "[a].h5", 'it\'s "größe".h5', "1.5"])
def test_a_file_of_any_name_is_listed_until_it_is_gone(tmp_path, name):
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    write_params(tmp_path, PARAMS | {"model": {"name": "mlp", "weights": name}})
    (tmp_path / name).touch()
    assert watch_own_code(tmp_path) == [f"{name} decides results and is now listed in dvc.yaml"]
    assert watch_own_code(tmp_path) == []
    assert read_yaml(tmp_path / "dvc.yaml")["stages"]["identities"]["deps"][-1] == name
    (tmp_path / name).unlink()
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


FEW = "19 steps: mostly starts and ends of epochs"
OF_TEST, OF_BOTH = {"accuracy": 0.5, "loss": 2.0}, {"accuracy": 0.5, "perplexity": 9.0}


@pytest.mark.parametrize(
    ("warm", "steps", "test", "said"),
    [
        (0, 20, OF_TEST, "no epoch timed, test accuracy 0.5000"),
        (9, 20, OF_BOTH, "9 examples/s, test accuracy 0.5000, test perplexity 9.0000"),
        (4, 20, OF_TEST, "4 examples/s (its one epoch, with the start), test accuracy 0.5000"),
        (9, 19, {}, f"9 examples/s ({FEW}), validation accuracy 0.7500"),
    ],
)
def test_a_training_is_summed_up_by_the_test_split_or_else_by_validation(warm, steps, test, said):
    last = {"accuracy": 0.9, "val_accuracy": 0.75}
    step = StepTimes(ms_p50=1.0, ms_p95=1.0, ms_p99=1.0, count=steps)
    rates = TrainThroughput(train_examples_per_s=warm, cold_examples_per_s=4) if warm else None
    known = {"metric": "accuracy", "last_epoch": last, "test": test}
    assert summarize(replace(made_up(TrainResult), **known, step=step, throughput=rates)) == said


def test_where_a_training_was_stopped_is_said():
    for rows, by, said in (
        (3, "train.callbacks", "stopped early, within its last epoch"),
        (2, "train.early_stopping", "stopped early after 2 of 3 epochs"),
        (3, "", ""),
    ):
        stopped = SimpleNamespace(ended_by=by, rows=[{}] * rows)
        assert describe_stop(stopped, TrainSettings(epochs=3)) == said


@pytest.mark.parametrize("splits", [("train", "test"), ()])
def test_a_store_that_is_away_is_said_once_also_of_what_was_fetched(splits):
    def fail(*_):
        raise ObjectStoreFailed("it is away")

    snapshot = SimpleNamespace(splits=splits, columns=(SimpleNamespace(name="image"),))
    fetched = SimpleNamespace(verify_regions=fail)
    stored = SimpleNamespace(snapshot=snapshot, memmap=fail, fetched=fetched)
    assert [str(one) for one in find_damaged_columns(stored)] == ["it is away"]


LINE = r"test_identities\.py, line \d+: sys\.exit\(code\) exits"


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [(0, InvalidCode, LINE), (None, InvalidCode, LINE), (3, SystemExit, "^3$")],
)
def test_own_code_that_ends_a_stage_without_an_error_is_named_with_its_line(code, error, said):
    with pytest.raises(error, match=said), cli.refuse_early_exit():
        sys.exit(code)
