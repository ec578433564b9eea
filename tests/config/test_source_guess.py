"""Overlays of one line: what the data are, and the ops that they need."""

from __future__ import annotations

import pytest

from flows.run.changed_params import NamedChanges
from throughline.config.params import check
from throughline.config.source_guess import guess_source
from throughline.shared.errors import InvalidParams

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
        (["my/a/1.jpg", "my/a/1.txt"], {}, "is not certain of .*, with 1 .jpg, 1 .txt; set data"),
        (["my/a.csv", "my/b.csv", "my/c.txt"], {}, "my holds a.csv, b.csv; name one of them"),
        (["my/a.csv", "my/b.npz"], {}, "my holds a.csv; name one of them"),
        (["a.json.gz"], {}, "a.json.gz is compressed; unpack it with gunzip"),
        (["sheet.xlsx"], {}, "knows no kind for .*sheet.xlsx; set data.source"),
    ],
)
def test_the_kind_of_input_follows_from_names_and_keys_or_is_asked_for(
    tmp_path, names, more, source
):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
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
    ("source", "missing", "said"),
    [
        ("time_series", "interpolate", ""),
        ("time_series", {"load": "previous"}, ""),
        ("time_series", "median", "gaps of a time series are filled by interpolate or previous"),
        ("table", "previous", "interpolate and previous fill gaps of source: time_series"),
        ("table", "median", ""),
        ("image_folder", "median", "the source image_folder is no table; drop it"),
    ],
)
def test_what_empty_cells_become_is_taken_for_the_data_that_have_some(source, missing, said):
    data = {"source": source, "path": "x.csv", "missing": missing}
    document = {"data": data, "pipelines": {"naive": {"read": "shards"}}}
    if said:
        with pytest.raises(InvalidParams, match=said):
            check(document)
    else:
        assert check(document).data.missing == missing
