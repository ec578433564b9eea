"""A command is checked as a whole before Prefect is imported; a user's mistake has no traceback.
What a form or a command asks for becomes the parameters of a run, resolved once.
"""

import copy
import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from flows.orchestration import cli
from flows.orchestration.stages import list_again
from flows.run.access_policy import CONFINED
from flows.run.changed_params import NamedChanges, dump_params, join_overlays, merge
from flows.run.parameters import OWN_PIPELINES, Changes, find_numbers, select_pipelines
from flows.run.resolution import check_started_command, resolve, resolve_command
from tasks.identities import main as write_identities
from tasks.ingest import main as ingest
from tests.support.lanes import slow_but_first
from tests.support.project import SMALL, git, run_python, write_params
from tests.support.small_data import write_files
from tests.support.worktrees import cheap_project
from throughline.config.params_file import apply_overrides, parse_yaml
from throughline.config.table_check import READ_BYTES, check_table
from throughline.settings import DataSettings, WindowSettings
from throughline.shared import errors

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
        (["--set", "data.path=/usr"], ""),  # which is there
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


@pytest.mark.parametrize("start", [check_started_command, ingest, write_identities])
@pytest.mark.usefixtures("project")
def test_a_store_that_can_never_be_written_is_said_first(monkeypatch, capsys, start):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "./mlruns")
    monkeypatch.setattr(sys, "argv", ["-m"])
    with pytest.raises(SystemExit, match=r"^2$"):
        start()
    assert "./mlruns is a folder" in capsys.readouterr().err


def test_the_flow_of_a_command_has_the_parameters_that_were_checked(project):
    """Overlays are merged in their order, overrides come last."""
    first, second = "train: {epochs: 5}\nbatch_size: 8\n", "train: {seed: 3}\nbatch_size: 4\n"
    write_files(project, {"1.yaml": first, "2.yaml": second})
    files = [project / "1.yaml", project / "2.yaml"]
    changes, checked = resolve_command(["train.seed=16"], files, "mine", ["naive"])
    train = checked.params.train
    assert (train.epochs, train.seed, checked.params.batch_size) == (5, 16, 4)
    assert resolve(project, changes, ["naive"]) is checked
    assert resolve(project, Changes(epochs=4), ["naive"]).params.train.epochs == 4
    assert len(resolve(project, changes).params.pipelines) == 2
    write_params(project, {**SMALL, "batch_size": 2})
    assert resolve(project, changes, ["naive"]) is not checked


@pytest.mark.parametrize(
    ("asked", "error", "reason"),
    [
        ((["epochs"], [], None), errors.InvalidParams, "--set: 'epochs' is not KEY=VALUE"),
        ((["train.seed=4294967296"], [], None), errors.InvalidParams, r"train\.seed: .*less than"),
        ((None, [Path("wrong.yaml")], None), errors.InvalidParams, r"wrong\.yaml: train\.epoch "),
        ((None, [], "../out"), errors.WorkspaceProblem, "cannot be the name of a run"),
        ((None, [], "mine"), errors.WorkspaceProblem, "--name mine is for a run with changes"),
    ],
)
def test_nothing_starts_with_a_mistake(project, asked, error, reason):
    (project / "wrong.yaml").write_text("train: {epoch: 3}\n")
    with pytest.raises(error, match=reason):
        resolve_command(*asked, pipelines=[])


def test_only_bugs_keep_their_traceback_in_the_log_of_a_run(monkeypatch):
    for key in ("LOGGING_LEVEL", "SERVER_ANALYTICS_ENABLED", "LOGGING_SERVER_LEVEL"):
        monkeypatch.setenv(f"PREFECT_{key}", "ERROR")
    cli.configure_logging()
    kept = []
    for error in (errors.MissingInput("run `dvc repro shard`"), KeyError("label")):
        record = logging.makeLogRecord({"msg": "failed", "exc_info": (None, error, None)})
        assert logging.getLogger("prefect.flow_runs").filter(record)
        kept.append((record.getMessage(), bool(record.exc_info)))
    assert kept == [("MissingInput: run `dvc repro shard`", False), ("failed", True)]


def test_configurations_that_a_command_names_are_the_run_s_even_if_all_of_params_yaml(monkeypatch):
    monkeypatch.delenv(CONFINED, raising=False)
    assert select_pipelines(OWN_PIPELINES) == OWN_PIPELINES and OWN_PIPELINES
    monkeypatch.setenv(CONFINED, "1")
    assert select_pipelines(OWN_PIPELINES) == [], "what the form shows before anybody chooses"
    assert select_pipelines(OWN_PIPELINES[:1]) == OWN_PIPELINES[:1]


@pytest.mark.usefixtures("project")
def test_what_a_run_would_have_is_shown_and_nothing_runs(capsys):
    options = cli.RunOptions(set=["train.epochs=9"], show=True)
    ended = pytest.raises(SystemExit, match=r"^0$")
    with ended, cli.flow_command("training", ["naive"], options):
        pytest.fail("the block was entered")
    assert parse_yaml(capsys.readouterr().out, "it")["train"]["epochs"] == 9


def test_the_command_that_measures_again_is_the_same_but_for_what_it_measures():
    assert list_again(["naive"], ["naive", "optimized"]) == ["race"]
    with pytest.raises(errors.UnknownPipeline, match="--measure-again nave"):
        list_again(["nave"], ["naive", "optimized"])
    options = ["--set", "data.path=my data", "--measure-again", "a", "--measure-again=c"]
    said = cli.compose_measure_again("comparison", options, "b")
    again = "--set 'data.path=my data' --measure-again b"
    assert said.endswith(f": python -m flows.comparison {again}")


def test_a_table_is_read_before_the_run_unless_ingest_has_read_it_or_it_is_large(tmp_path):
    rows = "".join(f"{number},{number % 7}.5\n" for number in range(120))
    files = {"texts.csv": "words,label\na,b\n", "power.csv": f"hour,load\n{rows}"}
    write_files(tmp_path, {"params.yaml": "", "rows.csv": "size,kind\n1,a\n2,b\n"} | files)
    data = DataSettings(source="table", path="rows.csv", label_column="kin", ignore=["colour"])
    with pytest.raises(errors.UnreadableSource, match="2 problems"):
        check_table(tmp_path, data, changed=False)
    manifest = write_files(tmp_path, {"data/manifest/manifest.json": ""}) / "data/manifest"
    os.utime(manifest / "manifest.json", ((tmp_path / "rows.csv").stat().st_mtime + 9,) * 2)
    check_table(tmp_path, data, changed=False)
    with pytest.raises(errors.UnreadableSource):
        check_table(tmp_path, data, changed=True)
    os.truncate(tmp_path / "rows.csv", READ_BYTES + 1)
    check_table(tmp_path, data, changed=True)

    data = DataSettings(source="text_table", path="texts.csv")
    with pytest.raises(errors.UnreadableSource, match="no column text"):
        check_table(tmp_path, data, changed=True)
    data = DataSettings(source="time_series", path="power.csv", time_column="hour")
    check_table(tmp_path, data, changed=True, window=WindowSettings(length=8))
    with pytest.raises(errors.InvalidParams, match="the validation split has 12 time steps"):
        check_table(tmp_path, data, changed=True, window=WindowSettings(length=24))


UNTOUCHED = {"preset": "none", "overrides": [], "overlay": {}, **find_numbers(SMALL)}


def test_the_one_default_that_dvc_needs_written_out_is_asked_for(project):
    data = {key: value for key, value in SMALL["data"].items() if key != "fetch"}
    write_params(project, {**SMALL, "data": data})
    with pytest.raises(errors.InvalidParams, match=r"data.fetch is missing.*write `fetch: none`"):
        resolve(project, Changes())
    text = resolve(project, Changes(overrides=["train.epochs=3"])).text
    assert parse_yaml(text, "params.yaml")["data"]["fetch"] == "none"


def test_what_was_changed_in_a_form_is_the_only_change_and_comments_stay(project):
    text = "# why\n" + (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text)
    same = resolve(project, Changes(**UNTOUCHED))
    assert (same.changed, same.text) == (False, text)
    # Who names the present value asks for a worktree, perhaps to compare others with.
    assert resolve(project, Changes(overrides=[f"batch_size={SMALL['batch_size']}"])).changed
    changed = resolve(project, Changes(**UNTOUCHED | {"epochs": 3}))
    assert (changed.changed, changed.text) == (True, text.replace("epochs: 2", "epochs: 3"))
    with_overlay = UNTOUCHED | {"overlay": {"train": {"epochs": 5}}}
    assert resolve(project, Changes(**with_overlay)).params.train.epochs == 5
    assert resolve(project, Changes(**with_overlay | {"epochs": 7})).params.train.epochs == 7


def test_a_changed_run_has_the_configurations_asked_for_but_the_snapshot_of_all(project):
    part = {"read": "snapshot", "snapshot": {"fraction": 0.3}, "shuffle": {"kind": "global"}}
    write_params(project, SMALL | {"pipelines": {"naive": {"read": "shards"}, "part": part}})
    resolved = resolve(project, Changes(epochs=3), ["naive"])
    of_the_run = parse_yaml(resolved.text, "params.yaml")
    assert [*of_the_run["pipelines"]] == [*resolved.params.pipelines] == ["naive"]
    assert of_the_run["snapshot"]["fraction"] == 0.3 == resolved.params.snapshot.stored_fraction
    assert [*parse_yaml(resolved.complete, "complete")["pipelines"]] == ["naive", "part"]
    for changes, only in ((Changes(epochs=3), ["naive", "part"]), (Changes(), ["naive"])):
        whole = resolve(project, changes, only)
        assert [*whole.params.pipelines] == ["naive", "part"]
        assert "fraction" not in parse_yaml(whole.text, "params.yaml")["snapshot"]


def test_a_form_shows_the_numbers_of_params_yaml_or_their_defaults_and_older_ones_are_named():
    assert find_numbers(SMALL) == {"epochs": 2, "batch_size": 32, "learning_rate": 0.01}
    defaults = {"epochs": 2, "batch_size": 256, "learning_rate": 0.001}
    for train in (["epochs"], {"learning_rate": float("nan"), "epochs": "nine"}):
        assert find_numbers({"train": train}) == defaults
    later = SMALL | {"train": SMALL["train"] | {"epochs": 10}}
    assert Changes(**UNTOUCHED).numbers(SMALL) == []
    assert Changes(**UNTOUCHED).numbers(later) == ["train.epochs=2"]
    assert Changes(overrides=["train.epochs=2"]).numbers(later) == [], "nobody's but the user's"


@pytest.mark.integration
def test_a_path_stays_as_it_is_written_where_a_worktree_can_have_it(tmp_path):
    """It has what git tracks whole and what DVC reads, but of a submodule an empty folder."""
    project, other = cheap_project(tmp_path / "project"), cheap_project(tmp_path / "other")
    write_files(other, {"cat/1.png": ""})
    git(other, "add", ".")
    git(other, "commit", "-qm", "photos")
    add = ("submodule", "--quiet", "add", str(other), "my/module")
    git(project, "-c", "protocol.file.allow=always", *add)
    (project / "mine").mkdir()
    files = ("known/1.png", "part/1.png", "part/2.png", "unknown/1.png", "../photos/1.png")
    write_files(project, dict.fromkeys(files, ""))
    git(project, "add", "known", "part/1.png")
    absolute = {path: str(project / path) for path in ("part", "my/module/cat", "my")}
    absolute["../photos"] = str(tmp_path / "photos")
    for asked in ("known", "unknown", "mine", "nowhere", "s3://bucket/photos", *absolute):
        resolved = resolve(project, Changes(overrides=[f"data.path={asked}"]))
        for text in (resolved.text, resolved.complete):
            assert parse_yaml(text, "it")["data"]["path"] == absolute.get(asked, asked)
        assert resolved.params.data.path == absolute.get(asked, asked)


def nested(leaves: st.SearchStrategy, keys: st.SearchStrategy) -> st.SearchStrategy:
    """Values of any depth; a key with `!` at its end is a mark of overlays."""
    keys = keys.filter(lambda key: not key.endswith("!"))

    def containers(items: st.SearchStrategy) -> st.SearchStrategy:
        return st.lists(items, max_size=3) | st.dictionaries(keys, items, max_size=3)

    return st.recursive(leaves, containers, max_leaves=8)


ANY = nested(st.text(max_size=8) | st.integers() | st.booleans() | st.none(), st.text(max_size=5))
NUMBERS = nested(st.integers(0, 3), st.sampled_from("ab"))
OVERLAY = st.dictionaries(st.sampled_from(["a", "b", "a!", "b!"]), NUMBERS, max_size=2).filter(
    lambda overlay: len({key.rstrip("!") for key in overlay}) == len(overlay)
)


@pytest.mark.integration
@given(ANY)
@settings(max_examples=30)
def test_any_value_of_an_override_reads_as_itself(value):
    document = YAML().load("a: {b: 1}\nc:\n  - d\n")
    merge(document, {"a": {"b": value, "e": [value]}})
    assert parse_yaml(dump_params(document), "it")["a"] == {"b": value, "e": [value]}


@given(OVERLAY, OVERLAY, st.dictionaries(st.sampled_from("ab"), st.just({"a": {"b": 1}})))
@settings(max_examples=50)
def test_joined_overlays_change_what_both_change_one_after_the_other(first, second, document):
    joined, one_by_one = copy.deepcopy(document), copy.deepcopy(document)
    merge(joined, join_overlays(first, second))
    for overlay in (first, second):
        merge(one_by_one, copy.deepcopy(overlay))
    assert joined == one_by_one


def test_a_problem_names_what_it_comes_from(project):
    overlay = {"train": {"epoch": 3}, "batch_size": 0}
    overrides = ["train.optimiser=x", "measure={steps: 1}", "trian.epochs=3"]
    with pytest.raises(errors.InvalidParams) as raised:
        resolve(project, Changes(overlay=overlay, overrides=overrides))
    assert {problem.partition(";")[0] for problem in raised.value.problems} == {
        "overlay: train.epoch is not a field",
        "overlay: batch_size: input should be greater than or equal to 1",
        "--set train.optimiser is not a field",
        "--set measure: measure.steps is not a field",
        "--set trian.epochs: trian is not a field",
    }
    with (project / "params.yaml").open("a") as file:
        file.write("measur: {}\n")
    with pytest.raises(errors.InvalidParams, match=r"params\.yaml: measur is not a field"):
        resolve(project, Changes(overlay={"batch_size": 8}))


def test_an_override_may_be_empty_and_is_not_cut_where_yaml_has_comments():
    document, texts = {}, {"a": "my photos #1", "b": "#1", "c": "[1, 2] # two", "d": "''"}
    apply_overrides(document, [f"{key}={text}" for key, text in texts.items()])
    assert document == {"a": "my photos #1", "b": "#1", "c": [1, 2], "d": ""}


def test_what_was_said_of_a_former_value_is_not_said_of_the_new_one():
    text = "a: 1  # one\nb: {c: 2}  # two\n\n# of d\nd: 3  # three\n"
    named = NamedChanges(overlays={"it": {"a": 4, "d": 3}}, overrides=["b=5"])
    assert dump_params(named.apply(text)) == "a: 4\nb: 5\n\n# of d\nd: 3  # three\n"


def test_a_change_is_not_one_of_what_shares_its_anchor():
    text = "a: &it {x: 1}\nb: *it\nc: *it\n"
    named = NamedChanges(overlays={"overlay": {"a": {"x": 2}}}, overrides=["b.x=3"])
    changed = parse_yaml(dump_params(named.apply(text)), "it")
    assert changed == {"a": {"x": 2}, "b": {"x": 3}, "c": {"x": 1}}


def test_a_known_dataset_is_fetched_where_it_is_the_data_alone(project):
    for path, fetched in (("my/photos", "none"), ("data/raw/fashion_mnist", "fashion_mnist")):
        overlay = {"data": {"fetch": "fashion_mnist", "path": path}}
        assert resolve(project, Changes(overlay=overlay)).params.data.fetch == fetched
