"""A command is checked as a whole before Prefect is imported; a user's mistake has no traceback."""

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from flows.orchestration.cli import (
    RunOptions,
    compose_measure_again,
    configure_logging,
    flow_command,
)
from flows.orchestration.stages import list_again
from flows.run import source_check
from flows.run.access_policy import CONFINED
from flows.run.early_check import check_started_command
from flows.run.parameters import OWN_PIPELINES, Changes, select_pipelines
from flows.run.resolution import resolve, resolve_command
from flows.run.source_check import check_named_files, check_source, is_large
from tasks.identities import main as write_identities
from tasks.ingest import main as ingest
from tasks.own_code import list_watched_files
from tests.support.lanes import slow_but_first
from tests.support.project import SMALL, run_python, write_params
from throughline.config.named_files import find_named_files
from throughline.config.params_file import read_yaml
from throughline.config.table_check import READ_BYTES, check_table
from throughline.settings import DataSettings, WindowSettings
from throughline.shared.errors import (
    DataNotFound,
    InvalidParams,
    MissingInput,
    ObjectStoreFailed,
    UnknownPipeline,
    UnreadableSource,
    WorkspaceProblem,
)
from throughline.shared.object_store import open_store

NOWHERE = {**SMALL, "data": {"source": "image_folder", "path": "nowhere", "fetch": "none"}}
IMPORTS = """
import atexit, runpy, sys
slow = {'mlflow', 'pandas', 'prefect', 'tensorflow'}
atexit.register(lambda: print('imported', *sorted(slow & {*sys.modules})))
module, *options = sys.argv[1:]
sys.orig_argv = [sys.executable, '-m', module, *options]
sys.argv = ['-m', *options]
__import__(module.partition('.')[0])
"""  # what `python -m` does first, and which libraries it has imported in the end


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    write_params(tmp_path, SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.integration
@pytest.mark.parametrize("module", slow_but_first(["flows.comparison", "tasks.train"]))
def test_a_mistake_is_said_before_anything_slow_is_imported(tmp_path, module):
    write_params(tmp_path, SMALL)
    options = ("--pipeline", "nave")
    done = run_python(IMPORTS, module, *options, folder=tmp_path, ends_with=2)
    assert done.stdout == "imported\n" and "did you mean naive" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pipeline", "nave"], "--pipeline nave"),
        (["--set", "train.epoch=2"], "train.epoch"),
        (["--name", "mine"], "--name mine"),
        ([], "data.path: nowhere"),
        (["--help"], ""),  # what the command itself answers is left to it
        (["--set"], ""),
        (["--show"], ""),
    ],
)
def test_the_early_check_knows_options_parameters_and_data(
    project, monkeypatch, capsys, options, said
):
    write_params(project, NOWHERE)
    monkeypatch.setattr(sys, "argv", ["-m", *options])
    with pytest.raises(SystemExit, match=r"^2$") if said else nullcontext():
        check_started_command()
    assert said in capsys.readouterr().err


def test_a_store_that_can_never_be_written_is_said_before_a_flow_and_by_each_stage(
    project, monkeypatch, capsys
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    monkeypatch.setattr(sys, "argv", ["-m"])
    for start in (check_started_command, ingest, write_identities):
        with pytest.raises(SystemExit) as ended:
            start()
        said = capsys.readouterr().err
        assert ended.value.code == 2 and "./mlruns is a folder" in said, said


@pytest.mark.integration
def test_the_parameters_of_the_early_check_are_the_flows(project, monkeypatch):
    (project / "nowhere").mkdir()
    write_params(project, NOWHERE)
    monkeypatch.setattr(sys, "argv", ["-m", "--pipeline", "naive", "--set", "train.epochs=9"])
    check_started_command()
    changes, resolved = resolve_command(["train.epochs=9"], [], None, ["naive"])
    assert resolve(project, changes, ["naive"]) is resolved


def test_the_flow_of_a_command_has_the_parameters_that_were_checked(project):
    """Overlays are merged in their order, overrides come last."""
    files = [project / "first.yaml", project / "second.yaml"]
    files[0].write_text("train: {epochs: 5}\nbatch_size: 8\n")
    files[1].write_text("train: {seed: 3}\nbatch_size: 4\n")
    changes, checked = resolve_command(["train.seed=16"], files, "mine", ["naive"])
    train = checked.params.train
    assert (train.epochs, train.seed, checked.params.batch_size) == (5, 16, 4)
    assert resolve(project, changes, ["naive"]) is checked
    assert resolve(project, Changes(epochs=4), ["naive"]).params.train.epochs == 4
    assert len(resolve(project, changes).params.pipelines) == 2
    write_params(project, {**SMALL, "batch_size": 2})
    assert resolve(project, changes, ["naive"]) is not checked


@pytest.mark.parametrize(
    ("overrides", "overlay", "name", "error", "reason"),
    [
        (["epochs"], None, None, InvalidParams, "--set: 'epochs' is not KEY=VALUE"),
        (["[a]=1"], None, None, InvalidParams, r"'\[a\]=1' is not KEY=VALUE"),
        (["preprocess=decode"], None, None, InvalidParams, "preprocess: expected a list of ops"),
        (["train.seed=4294967296"], None, None, InvalidParams, r"train\.seed: .*less than"),
        (None, "absent.yaml", None, InvalidParams, r"absent\.yaml"),
        (None, "wrong.yaml", None, InvalidParams, r"wrong\.yaml: train\.epoch "),
        (None, None, "../out", WorkspaceProblem, "cannot be the name of a run"),
        (None, None, "mine", WorkspaceProblem, "--name mine is for a run with changes"),
    ],
)
def test_nothing_starts_with_a_mistake(project, overrides, overlay, name, error, reason):
    (project / "wrong.yaml").write_text("train: {epoch: 3}\n")
    overlays = [Path(overlay)] if overlay else None
    with pytest.raises(error, match=reason):
        resolve_command(overrides, overlays, name, [])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MissingInput("run `dvc repro shard`"), "MissingInput: run `dvc repro shard`"),
        (KeyError("label"), "the run failed"),
    ],
)
def test_only_bugs_keep_their_traceback_in_the_log_of_a_run(monkeypatch, caplog, error, text):
    for key in ("LOGGING_LEVEL", "SERVER_ANALYTICS_ENABLED", "LOGGING_SERVER_LEVEL"):
        monkeypatch.setenv(f"PREFECT_{key}", "ERROR")
    configure_logging()
    logger = logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "propagate", True)
    logger.addHandler(caplog.handler)
    try:
        with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: False}):
            logger.error("the run failed", exc_info=error)
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records[0].getMessage() == text
    assert bool(caplog.records[0].exc_info) is isinstance(error, KeyError)


def test_configurations_that_a_command_names_are_the_run_s_even_if_all_of_params_yaml(monkeypatch):
    monkeypatch.delenv(CONFINED, raising=False)
    assert select_pipelines(OWN_PIPELINES) == OWN_PIPELINES and OWN_PIPELINES
    monkeypatch.setenv(CONFINED, "1")
    assert select_pipelines(OWN_PIPELINES) == [], "what the form shows before anybody chooses"
    assert select_pipelines(OWN_PIPELINES[:1]) == OWN_PIPELINES[:1]


def test_what_a_run_would_have_is_shown_and_nothing_runs(project, capsys):
    options = RunOptions(set_=["train.epochs=9"], overlay=None, name=None, show=True)
    with pytest.raises(SystemExit) as ended, flow_command("training", ["naive"], options):
        pytest.fail("the block was entered")
    assert ended.value.code == 0
    (project / "shown.yaml").write_text(capsys.readouterr().out)
    assert read_yaml(project / "shown.yaml")["train"]["epochs"] == 9


def test_the_command_that_measures_again_is_the_same_but_for_what_it_measures():
    assert list_again(["naive"], ["naive", "optimized"]) == ["race"]
    with pytest.raises(UnknownPipeline, match="--measure-again nave"):
        list_again(["nave"], ["naive", "optimized"])
    options = ["--set", "data.path=my data", "--measure-again", "a"]
    said = compose_measure_again("comparison", options, "b")
    again = "--set 'data.path=my data' --measure-again b"
    assert said.endswith(f": python -m flows.comparison {again}")


def test_a_table_is_read_before_the_run_unless_ingest_has_read_it_or_it_is_large(tmp_path):
    (tmp_path / "params.yaml").touch()
    table = tmp_path / "rows.csv"
    table.write_text("size,kind\n1,a\n2,b\n")
    data = DataSettings(source="table", path="rows.csv", label_column="kin", ignore=["colour"])
    with pytest.raises(UnreadableSource, match="2 problems"):
        check_table(tmp_path, data, changed=False)
    manifest = tmp_path / "data" / "manifest" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    os.utime(manifest, (table.stat().st_mtime + 9,) * 2)
    check_table(tmp_path, data, changed=False)
    with pytest.raises(UnreadableSource):
        check_table(tmp_path, data, changed=True)
    os.truncate(table, READ_BYTES + 1)
    check_table(tmp_path, data, changed=True)


def test_the_header_of_a_table_of_texts_and_the_length_of_a_series_are_read(tmp_path):
    (tmp_path / "params.yaml").touch()
    (tmp_path / "texts.csv").write_text("words,label\na,b\n")
    data = DataSettings(source="text_table", path="texts.csv")
    with pytest.raises(UnreadableSource, match="no column text"):
        check_table(tmp_path, data, changed=True)
    rows = "".join(f"{number},{number % 7}.5\n" for number in range(120))
    (tmp_path / "power.csv").write_text(f"hour,load\n{rows}")
    data = DataSettings(source="time_series", path="power.csv", time_column="hour")
    check_table(tmp_path, data, changed=True, window=WindowSettings(length=8))
    with pytest.raises(InvalidParams, match="the validation split has 12 time steps"):
        check_table(tmp_path, data, changed=True, window=WindowSettings(length=24))


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of a project's photos; the project is as after `dvc init --no-scm`."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\nno_scm = True\nanalytics = false\n")
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    (folder / "größe.jpg").write_bytes(b"x")
    return folder


@pytest.mark.slow
def test_what_dvc_cannot_hash_is_refused_with_its_name_unless_it_is_ignored(photos, tmp_path):
    check_source(tmp_path, "photos")
    os.mkfifo(photos / "pipe.jpg")
    (photos / "link.png").symlink_to("nowhere")
    (photos / "zero.png").symlink_to("/dev/zero")
    with pytest.raises(UnreadableSource) as refused:
        check_source(tmp_path, "photos")
    reasons = dict.fromkeys(("pipe.jpg", "zero.png"), "is not a regular file")
    reasons |= {"link.png": "is a link to nothing; `dvc pull`"}
    assert all(f"{name} {reason}" in str(refused.value) for name, reason in reasons.items())
    not_utf8 = Path(os.fsdecode(os.fsencode(photos) + b"/x\xff.png"))
    not_utf8.touch()
    (tmp_path / ".dvcignore").write_text("".join(f"photos/cat/{name}\n" for name in reasons))
    with pytest.raises(UnreadableSource, match=r"cannot read some: \S+xff.png has a name that is"):
        check_source(tmp_path, "photos")
    not_utf8.unlink()
    check_source(tmp_path, "photos")


@pytest.mark.integration
def test_of_data_outside_the_project_no_dvcignore_is_advised(photos, tmp_path):
    (photos / "link.png").symlink_to("nowhere")
    (tmp_path / "project").mkdir()
    (tmp_path / ".dvc").rename(tmp_path / "project" / ".dvc")
    with pytest.raises(UnreadableSource, match=r"`find \S+ -xtype l -delete`") as refused:
        check_source(tmp_path / "project", "../photos")
    assert ".dvcignore" not in str(refused.value)


def test_a_source_that_is_not_there_is_named_unless_it_will_be_fetched(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n")
    check_source(tmp_path, "table.csv")
    check_source(tmp_path, "data/raw/fashion_mnist", fetched="fashion_mnist")
    for fetched in ("none", "fashion_mnist"):
        with pytest.raises(DataNotFound, match=r"^data\.path: nothing does not exist"):
            check_source(tmp_path, "nothing", fetched=fetched)


@pytest.mark.slow
@pytest.mark.integration
def test_a_bucket_in_which_nothing_is_there_is_named(tmp_path, bucket_url, proxy):
    open_store(bucket_url).write("photos/cat/1.jpg", b"x")
    proxy.requests.clear()
    for path in ("", "/photos", "/photos/", "/photos/cat/1.jpg"):
        check_source(tmp_path, f"{bucket_url}{path}")
    assert not [path for method, path, _ in proxy.requests if method == "GET" and "?" not in path]
    with pytest.raises(DataNotFound, match=rf"^data\.path: {bucket_url}/phot does not exist"):
        check_source(tmp_path, f"{bucket_url}/phot")
    with pytest.raises(ObjectStoreFailed, match=r"s3://other"):
        check_source(tmp_path, "s3://other")


def test_a_tokenizer_that_git_does_not_know_is_refused_before_anything_runs(project):
    (project / "worktree").mkdir()
    file = project / "vocab.txt"
    file.write_text("[UNK]\n")
    relative = {"preprocess": [{"tokenize": {"kind": "wordpiece", "model": file.name}}]}
    check_named_files(project, relative)
    with pytest.raises(InvalidParams, match=r"git add --force vocab\.txt.*absolute path"):
        check_named_files(project / "worktree", relative)
    for given in ({"kind": "wordpiece", "model": str(file)}, {"kind": "bytes"}):
        check_named_files(project / "worktree", {"preprocess": [{"tokenize": given}]})
    weights = {"model": {"name": "mlp", "weights": "some.h5"}}
    named = [("preprocess: tokenize.model", "vocab.txt"), ("model.weights", "some.h5")]
    assert find_named_files({**relative, **weights}) == named


def test_a_file_that_dvc_yaml_lists_and_git_does_not_know_is_refused_as_such(tmp_path):
    listed = "      # Own ops and models\n      - my_ops.py\n      - lookup.csv\n    outs: []\n"
    (tmp_path / "dvc.yaml").write_text(listed)
    assert list_watched_files(tmp_path) == ["lookup.csv"]
    with pytest.raises(InvalidParams, match=r"dvc\.yaml: lookup\.csv is not in"):
        check_named_files(tmp_path, {}, ["lookup.csv"])
    (tmp_path / "lookup.csv").touch()
    check_named_files(tmp_path, {}, ["lookup.csv"])


def test_data_is_large_from_so_many_files_or_bytes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(source_check, "MANY_FILES", 3)
    assert not is_large(tmp_path / "nowhere")
    for name in ("a/1", "a/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert not is_large(tmp_path)
    (tmp_path / "b").symlink_to("gone")
    assert is_large(tmp_path) and not is_large(tmp_path / "a" / "1")
    with (tmp_path / "a" / "1").open("wb") as file:
        file.truncate(source_check.MANY_BYTES)  # takes no room
    assert is_large(tmp_path / "a" / "1") and is_large(tmp_path / "a")
