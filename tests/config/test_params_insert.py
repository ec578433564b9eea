"""Settings inserted into params.yaml, those that ship with the project, and `source: auto`."""

from pathlib import Path

import pytest

from flows.run.changed_params import NamedChanges
from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.project import ROOT
from tests.support.small_data import write_files
from throughline.config.params import check, load_params
from throughline.config.params_file import parse_yaml
from throughline.config.params_insert import insert_pipeline, write_yaml
from throughline.config.source_guess import guess_source
from throughline.shared.errors import InvalidParams, Untunable

FOUND = {"read": "snapshot", "shuffle": {"kind": "global"}, "map": {"parallel": 2}, "prefetch": 2}
TEXTS = {
    "the project's own": (ROOT / "params.yaml").read_text(),
    "at the end, without a last line break": "a: 1\npipelines:\n  naive: {read: shards}",
    "a comment after it": "pipelines:\n    naive:\n        read: shards\n    # more\n\nb: [1]\n",
    "lines of Windows": "pipelines:\r\n  naive: {read: shards}\r\nb: 1\r\n",
    "a flow mapping over lines": "pipelines:\n  naive: {read: shards,\n    prefetch: 2}\nb: 1\n",
    "an empty value at the end": "pipelines:\n  naive:\n    read: shards\n    cache:\n",
    "an empty value before a section": "pipelines:\n  a: {}\n  b:\n    cache:\nc: 1\n",
    "an anchor": "x: &x {read: shards}\npipelines:\n  naive: *x\n  other:\n    <<: *x\nb: 1\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_only_the_new_lines_are_added_and_only_once(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_bytes(text.encode())
    assert insert_pipeline(path, "tuned", FOUND)
    before, after = text.encode(), path.read_bytes()
    unlike = (at for at, (one, new) in enumerate(zip(before, after, strict=False)) if one != new)
    start = next(unlike, len(before))
    assert after.endswith(before[start:]), "all of the rest"
    document = parse_yaml(text, "params.yaml")
    document["pipelines"]["tuned"] = FOUND
    assert parse_yaml(after.decode(), "params.yaml") == document
    assert not insert_pipeline(path, "tuned", FOUND) and path.read_bytes() == after


@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_a_link_stays_a_link_and_who_may_read_and_write_its_file_stays(tmp_path, mode):
    path = tmp_path / "params.yaml"
    path.symlink_to("shared.yaml")
    path.write_text(TEXTS["a comment after it"])
    path.chmod(mode)
    assert insert_pipeline(path, "tuned", FOUND)
    assert path.is_symlink() and "tuned" in (tmp_path / "shared.yaml").read_text()
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pipelines: {naive: {read: shards}}\n", "no lines can be added"),
        ("x: &x {read: shards}\npipelines:\n  naive:\n    *x\n", "no lines can be added"),
        ("pipelines:\n  tuned: {read: shards}\n", "exists with other settings"),
    ],
)
def test_what_cannot_be_added_is_said_with_the_lines_to_add_by_hand(tmp_path, text, why):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(Untunable, match=why) as refused:
        insert_pipeline(path, "tuned", FOUND)
    assert write_yaml("tuned", FOUND) in str(refused.value)
    assert path.read_text() == text


def test_a_class_whose_name_is_a_number_stays_a_name():
    found = {"read": "snapshot", "sampling": {"1": 2, "on": 3}}
    written = write_yaml("tuned", found)
    assert '{"1": 2, on: 3}' in written and parse_yaml(written, "x")["tuned"] == found


def test_the_shipped_file_and_overlays_of_demos_are_valid_and_a_mapping_may_replace(monkeypatch):
    shipped = [*load_params(ROOT / "params.yaml").pipelines]
    assert shipped == ["naive", "map_parallel", "vectorized", "optimized"]
    monkeypatch.chdir(ROOT)
    for preset in ("infra/presets/images.yaml", *Path().glob("infra/demo/*.yaml")):
        assert resolve(ROOT, Changes(preset=str(preset))).params
    overlay = {"pipelines": {"naive": {"prefetch": 3}}}
    changes = Changes(preset="infra/demo/small.yaml", overlay=overlay, epochs=7)
    params = resolve(ROOT, changes).params
    assert [*params.pipelines] == ["naive", "vectorized", "optimized"], "the preset's alone"
    assert (params.pipelines["naive"].prefetch, params.train.epochs) == (3, 7)


OWN = """
data: {source: fashion_mnist, path: data/raw/fashion_mnist, fetch: fashion_mnist}
preprocess: [decode]
augment: [flip]
postprocess: [rescale]
pipelines: {naive: {read: shards}}
"""


@pytest.mark.parametrize(
    ("names", "more", "source"),
    [
        (["flowers.csv"], {}, "table"),
        (["flowers.TSV"], {"label_column": "kind"}, "table"),
        (["power.parquet"], {"time_column": "hour"}, "time_series"),
        (["mails.csv"], {"text_column": "mail"}, "text_table"),
        (["mnist.npz"], {}, "arrays"),
        (["mails.jsonl"], {}, "text_lines"),
        (["my/cat/1.jpg", "my/dog/1.JPG", "my/readme.md"], {}, "image_folder"),
        (["my/1.png", "my/list.csv"], {}, "image_table"),
        (["my/spam/1.txt", "my/ham/1.txt"], {}, "text_folder"),
        (["my/train-00000-of-00002.tfrecord", "my/b.tfrecord-00001-of-00002"], {}, "tfrecord"),
        (["my/1.0.0/dataset_info.json", "my/1.0.0/features.json"], {}, "tfds"),
        (["my/a/1.jpg", "my/a/1.txt"], {}, "is not certain: .* holds 1 .jpg, 1 .txt; set data"),
        (["my/train.csv", "my/test.csv", "my/c.txt"], {}, "table"),
        (["my/a.csv", "my/b.npz"], {}, "is not certain: .* holds 1 .csv, 1 .npz; set data"),
        (["a.json.gz"], {}, "a.json.gz is compressed; unpack it with gunzip"),
        (["sheet.xlsx"], {}, "sheet.xlsx is not a folder, and .* its suffix; set data.source"),
    ],
)
def test_the_kind_of_input_follows_from_names_and_keys_or_is_asked(tmp_path, names, more, source):
    write_files(tmp_path, dict.fromkeys(names, ""))
    path = tmp_path / names[0].partition("/")[0]
    path = path / "1.0.0" if source == "tfds" else path
    if " " in source:
        with pytest.raises(InvalidParams, match=source):
            guess_source(str(path), more)
    else:
        assert guess_source(str(path), more) == source


@pytest.mark.parametrize(
    ("data", "more", "ops"),
    [
        ({"source": "table"}, {}, (["decode"], [], ["standardize", "categories"])),
        ({"source": "time_series"}, {}, (["decode"], [], ["standardize"])),
        ({"source": "text_folder"}, {}, (["decode", "tokenize", "truncate"], [], [])),
        ({"source": "text_folder"}, {"window": {"tokens": 64}}, (["decode", "tokenize"], [], [])),
        ({"source": "image_folder"}, {}, (["decode"], [], ["rescale"])),
        ({"source": "image_folder"}, {"augment": ["flip"]}, (["decode"], ["flip"], ["rescale"])),
        ({"path": "other"}, {}, (["decode"], ["flip"], ["rescale"])),
    ],
)
def test_ops_are_those_of_other_data_where_an_overlay_brings_some_and_names_none(data, more, ops):
    overlays = {"it": {"data": {"path": "x.csv", **data}, **more}}
    for overrides in ([], ["postprocess=auto"]):
        params = check(dict(NamedChanges(overlays=overlays, overrides=overrides).apply(OWN)))
        found = (params.preprocess, params.augment, params.postprocess)
        assert tuple([op.name for op in each] for each in found) == ops


@pytest.mark.parametrize(
    ("own", "change", "kept"),
    [
        ("{source: auto, path: a.npz}", "train.epochs=3", True),
        ("{source: auto, path: a.npz}", "data.path=b.npz", True),
        ("{source: auto, path: a.npz}", "data.source=arrays", True),
        ("{source: arrays, path: a.npz}", "data.source=auto", True),
        ("{source: auto, path: a.npz}", "data.path=b.csv", False),
        ("{source: auto, path: a.npz}", "data={source: table, path: b}", False),
        ("{source: auto, path: away}", "data.path=b.npz", True),  # nobody knows what it was
    ],
)
def test_ops_stay_where_auto_means_the_kind_that_it_was(own, change, kept):
    text = f"data: {own}\naugment: [flip]\npipelines: {{naive: {{read: shards}}}}\n"
    named = NamedChanges(overlays={}, overrides=[change])
    assert ("augment" in named.apply(text)) == kept
