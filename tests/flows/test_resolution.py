"""What a form or a command asks for becomes the parameters of a run, resolved once."""

import copy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from flows.run.changed_params import NamedChanges, dump_params, join_overlays, merge
from flows.run.parameters import Changes, find_numbers
from flows.run.resolution import resolve
from tests.support.project import SMALL, git, write_params
from tests.support.worktrees import cheap_project
from throughline.config.params_file import apply_overrides, parse_yaml, read_yaml
from throughline.shared.errors import InvalidParams

UNTOUCHED = {"preset": "none", "overrides": [], "overlay": {}, **find_numbers(SMALL)}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    write_params(tmp_path, SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_one_default_that_dvc_needs_written_out_is_asked_for(project):
    data = {key: value for key, value in SMALL["data"].items() if key != "fetch"}
    write_params(project, {**SMALL, "data": data})
    with pytest.raises(InvalidParams, match=r"data.fetch is missing.*write `fetch: none`"):
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


def test_a_run_of_some_configurations_stores_as_much_of_the_snapshot_as_all_read(project):
    part = {"read": "snapshot", "snapshot": {"fraction": 0.3}, "shuffle": {"kind": "global"}}
    write_params(project, SMALL | {"pipelines": {"naive": {"read": "shards"}, "part": part}})
    resolved = resolve(project, Changes(overrides=["train.epochs=3"]), ["naive"])
    of_the_run = parse_yaml(resolved.text, "params.yaml")
    assert [*of_the_run["pipelines"]] == ["naive"]
    assert of_the_run["snapshot"]["fraction"] == 0.3 == resolved.params.snapshot.stored_fraction
    whole = resolve(project, Changes(overrides=["train.epochs=3"]), ["naive", "part"])
    assert "fraction" not in parse_yaml(whole.text, "params.yaml")["snapshot"]


@pytest.mark.parametrize(
    ("document", "numbers"),
    [
        (SMALL, (2, 32, 0.01)),
        ({"train": {"epochs": 9}}, (9, 256, 0.001)),
        ({"train": {"learning_rate": float("nan"), "epochs": "nine"}}, (2, 256, 0.001)),
        ({"train": ["epochs"]}, (2, 256, 0.001)),
    ],
)
def test_a_form_shows_the_numbers_of_params_yaml_or_their_defaults(document, numbers):
    assert tuple(find_numbers(document).values()) == numbers


def test_of_the_configurations_those_asked_for_are_in_a_changed_run_and_all_in_any_other(project):
    names = list(SMALL["pipelines"])
    changed = resolve(project, Changes(epochs=3), ["naive"])
    assert list(changed.params.pipelines) == ["naive"]
    assert "optimized" not in changed.text
    assert list(parse_yaml(changed.complete, "complete")["pipelines"]) == names
    assert list(resolve(project, Changes(epochs=3)).params.pipelines) == names
    assert list(resolve(project, Changes(), ["naive"]).params.pipelines) == names


@pytest.mark.integration
@pytest.mark.parametrize(
    ("files", "tracked", "path"),
    [
        (["my/photos/1.png"], [], "my/photos"),
        (["my/photos/1.png"], ["my/photos"], "my/photos"),
        (["my/photos/1.png", "my/photos/2.png"], ["my/photos/1.png"], "{project}/my/photos"),
        (["../photos/1.png"], [], "{project.parent}/photos"),
        ([], [], "my/photos"),
        ([], [], "s3://bucket/photos"),
    ],
)
def test_a_path_stays_as_it_is_written_where_a_worktree_can_have_it(tmp_path, files, tracked, path):
    project = tmp_path / "project"
    for file in files:
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).touch()
    asked = str(Path(files[0]).parent) if files else path
    project.mkdir(exist_ok=True)
    write_params(project, SMALL)
    git(project, "init", "-q")
    git(project, "add", "params.yaml", *tracked)
    resolved = resolve(project, Changes(overrides=[f"data.path={asked}"]))
    expected = path.format(project=project)
    assert resolved.params.data.path == expected
    for text in (resolved.text, resolved.complete):
        assert parse_yaml(text, "it")["data"]["path"] == expected


@pytest.mark.integration
def test_data_in_a_submodule_is_where_the_submodule_is(tmp_path):
    """A worktree has an empty folder of it."""
    project, other = cheap_project(tmp_path / "project"), cheap_project(tmp_path / "other")
    (other / "cat").mkdir()
    (other / "cat" / "1.png").touch()
    git(other, "add", ".")
    git(other, "commit", "-qm", "photos")
    add = ("submodule", "--quiet", "add", str(other), "my/photos")
    git(project, "-c", "protocol.file.allow=always", *add)
    (project / "mine").mkdir()
    inside = {path: str(project / path) for path in ("my/photos/cat", "my")}
    for asked, expected in (*inside.items(), ("mine", "mine")):
        resolved = resolve(project, Changes(overrides=[f"data.path={asked}"]))
        assert resolved.params.data.path == expected


KEYS = st.text(max_size=5).filter(lambda key: not key.endswith("!"))  # a mark of overlays


@pytest.mark.integration
@given(
    st.recursive(
        st.text(max_size=8) | st.integers() | st.booleans() | st.none(),
        lambda items: st.lists(items, max_size=3) | st.dictionaries(KEYS, items, max_size=3),
        max_leaves=8,
    )
)
@settings(max_examples=30)
def test_any_value_of_an_override_reads_as_itself(value):
    document = YAML().load("a: {b: 1}\nc:\n  - d\n")
    merge(document, {"a": {"b": value, "e": [value]}})
    assert parse_yaml(dump_params(document), "it")["a"] == {"b": value, "e": [value]}


OVERLAY = st.dictionaries(
    st.sampled_from(["a", "b", "a!", "b!"]),
    st.recursive(
        st.integers(0, 3),
        lambda items: st.dictionaries(st.sampled_from(["a", "b"]), items, max_size=2),
        max_leaves=4,
    ),
    max_size=2,
).filter(lambda overlay: len({key.rstrip("!") for key in overlay}) == len(overlay))


@given(OVERLAY, OVERLAY, st.dictionaries(st.sampled_from("ab"), st.just({"a": {"b": 1}})))
@settings(max_examples=50)
def test_joined_overlays_change_what_both_change_one_after_the_other(first, second, document):
    joined, one_by_one = copy.deepcopy(document), copy.deepcopy(document)
    merge(joined, join_overlays(first, second))
    merge(one_by_one, copy.deepcopy(first))
    merge(one_by_one, copy.deepcopy(second))
    assert joined == one_by_one


def test_a_problem_names_what_it_comes_from(project):
    overlay = {"train": {"epoch": 3}, "batch_size": 0}
    overrides = ["train.optimiser=x", "measure={steps: 1}", "trian.epochs=3"]
    with pytest.raises(InvalidParams) as raised:
        resolve(project, Changes(overlay=overlay, overrides=overrides))
    starts = {problem.partition(";")[0] for problem in raised.value.problems}
    assert starts == {
        "overlay: train.epoch is not a field",
        "overlay: batch_size: input should be greater than or equal to 1",
        "--set train.optimiser is not a field",
        "--set measure: measure.steps is not a field",
        "--set trian.epochs: trian is not a field",
    }
    with (project / "params.yaml").open("a") as file:
        file.write("measur: {}\n")
    with pytest.raises(InvalidParams, match=r"params\.yaml: measur is not a field"):
        resolve(project, Changes(overlay={"batch_size": 8}))


@pytest.mark.parametrize(
    ("text", "value"),
    [("my photos #1", "my photos #1"), ("#1", "#1"), ("[1, 2] # two", [1, 2]), ("''", "")],
)
def test_an_override_may_be_empty_and_is_not_cut_where_yaml_has_comments(text, value):
    document = {}
    apply_overrides(document, [f"data.path={text}"])
    assert document == {"data": {"path": value}}


def test_what_was_said_of_a_former_value_is_not_said_of_the_new_one():
    text = "a: 1  # one\nb: {c: 2}  # two\n\n# of d\nd: 3  # three\n"
    named = NamedChanges(overlays={"it": {"a": 4, "d": 3}}, overrides=["b=5"])
    assert dump_params(named.apply(text)) == "a: 4\nb: 5\n\n# of d\nd: 3  # three\n"


def test_a_known_dataset_is_fetched_where_it_is_the_data_alone(project):
    overlay = {"data": {"fetch": "fashion_mnist", "path": "my/photos"}}
    assert resolve(project, Changes(overlay=overlay)).params.data.fetch == "none"
    overlay["data"]["path"] = "data/raw/fashion_mnist"
    assert resolve(project, Changes(overlay=overlay)).params.data.fetch == "fashion_mnist"


def test_a_change_is_not_one_of_what_shares_its_anchor():
    text = "a: &it {x: 1}\nb: *it\nc: *it\n"
    named = NamedChanges(overlays={"overlay": {"a": {"x": 2}}}, overrides=["b.x=3"])
    changed = parse_yaml(dump_params(named.apply(text)), "it")
    assert changed == {"a": {"x": 2}, "b": {"x": 3}, "c": {"x": 1}}


def test_numbers_of_a_form_that_is_older_than_params_yaml_are_named(project):
    form = Changes(**UNTOUCHED)
    assert form.numbers(read_yaml(project / "params.yaml")) == []
    later = SMALL | {"train": SMALL["train"] | {"epochs": 10}}
    assert form.numbers(later) == ["train.epochs=2"]
    assert Changes(overrides=["train.epochs=2"]).numbers(later) == [], "nobody's but the user's"
