"""Columns of a table next to its texts, and numbers to predict of them: from the file to a model of
two inputs, the same in every configuration.
"""

from __future__ import annotations

import copy
import json

import mlflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.support.predictions import export_file, predict_rows, save_untrained
from tests.support.prepared import prepare
from tests.support.project import SMALL, run_stages, write_params
from tests.support.texts import PREPROCESS, WORDS, params_of
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.config.table_check import check_table
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.measurement.equality import digest_examples
from throughline.models.inference import open_trained_model
from throughline.plan.schema import COLUMNS
from throughline.results.train import TrainResult
from throughline.settings import DataSettings
from throughline.shared.errors import InvalidParams, UnreadableSource
from throughline.shared.layout import Layout

COLORS = ("blue", "green", "red")
SEEN = {"numeric": ["size"], "categorical": ["color"], "missing": {"size": "median"}}
ROWS = 90
CONFIGS = {
    "naive": {"read": "shards"},
    "arrays": {"read": "arrays"},
    "by_length": {"read": "shards", "batch": {"pad_to": [64, 256]}},
    "indexed": {"read": "indexed_shards", "shuffle": {"kind": "global"}},
    "gathered": {"read": "snapshot", "shuffle": {"kind": "global"}},
    "gathered_by_length": {
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "batch": {"pad_to": "auto", "tokens": 512},
    },
}


def make_table(rows: int = ROWS) -> pd.DataFrame:
    """Texts that say nothing, and columns that tell both label and price; every 19th has no size,
    the fifth text is empty.
    """
    draw = np.random.default_rng(3)
    texts = [
        " ".join([f"{number}", *draw.choice(WORDS, size=1 + number % 30)]) for number in range(rows)
    ]
    texts[4] = ""
    return pd.DataFrame(
        {
            "text": texts,
            "label": ["large" if number >= rows / 2 else "small" for number in range(rows)],
            "size": ["" if number % 19 == 3 else f"{number / 4}" for number in range(rows)],
            "color": [COLORS[number % 3] for number in range(rows)],
            "price": [f"{2.5 * number + 100}" for number in range(rows)],
        }
    )


def write_csv(path, table):
    table.to_csv(path, index=False)


def write_parquet(path, table):
    typed = table.assign(size=pd.to_numeric(table["size"]), price=pd.to_numeric(table["price"]))
    typed.assign(text=[text or None for text in table["text"]]).to_parquet(path)


def write_lines(path, table):
    with path.open("w") as file:
        for row in table.to_dict("records"):
            values = {**row, "size": float(row["size"]) if row["size"] else None}
            file.write(json.dumps({**values, "price": float(row["price"])}) + "\n")


FORMS = {"items.csv": write_csv, "items.parquet": write_parquet, "items.jsonl": write_lines}


def data_of(path, **more) -> dict:
    source = "text_lines" if path.suffix == ".jsonl" else "text_table"
    return {"source": source, "path": str(path), "max_reject_fraction": 0.1} | SEEN | more


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """The table, and parameters and layout of its texts with two of its columns, prepared."""
    folder = tmp_path_factory.mktemp("items")
    table = make_table()
    write_csv(folder / "items.csv", table)
    params = params_of(
        {},
        data=data_of(folder / "items.csv"),
        pipelines=CONFIGS,
        model={"name": "text_classifier", "options": {"width": 8}},
    )
    return table, params, prepare(params, Layout(folder), min_shards=3)


@pytest.mark.parametrize("name", FORMS)
def test_columns_follow_their_texts_whatever_the_file(tmp_path, name):
    table = make_table()
    table.loc[10, "color"] = ""
    FORMS[name](tmp_path / name, table)
    settings = DataSettings.model_validate(data_of(tmp_path / name, label_kind="number"))
    settings = settings.model_copy(update={"label_column": "price"})
    manifest = ingest(settings, tmp_path / "manifest")
    rejected = dict(zip(manifest.rejected["id"], manifest.rejected["reason"], strict=True))
    assert [name[-8:] for name in rejected] == ["00000005", "00000011"]
    assert [*rejected.values()][1].startswith("color is missing")
    places = [int(name[-8:]) - 1 for name in manifest.examples["id"]]
    rows = table.iloc[places]
    sizes = pd.to_numeric(rows["size"]).to_numpy()
    train = (manifest.examples["split"] == "train").to_numpy()
    median = np.float32(np.nanmedian(sizes[train]))
    assert manifest.schema.columns.medians == {"size": median}
    assert manifest.stats["notes"] == {f"size missing, {median:.7g} for it": 5}
    columns = np.asarray(read_manifest(tmp_path / "manifest").columns)
    np.testing.assert_array_equal(columns[:, 0], np.where(np.isnan(sizes), median, sizes))
    assert [COLORS[int(code)] for code in columns[:, 1]] == rows["color"].tolist()
    assert manifest.examples["label"].tolist() == pd.to_numeric(rows["price"]).tolist()
    assert manifest.schema.predicts_number and manifest.classes == ()
    readings = [(one["name"], one["kind"]) for one in manifest.stats["columns"]]
    assert readings == [("price", "label"), ("size", "number"), ("color", "category")]


@pytest.mark.slow
def test_every_configuration_delivers_the_same_texts_with_their_columns(listed):
    table, params, layout = listed
    data = open_inputs(params, layout)
    for split in data.shards.splits:
        digests = {
            name: digest_examples(
                open_input_pipeline(params, name, data, split=split, purpose="compare")
            ).digest
            for name in params.pipelines
        }
        assert len(set(digests.values())) == 1, digests
    keys = read_manifest(layout.manifest).examples.set_index("key")["id"]
    sizes = pd.to_numeric(table["size"]).fillna(data.shards.schema.columns.medians["size"])
    for name in ("naive", "gathered_by_length"):
        pipeline = open_input_pipeline(params, name, data, split="train", purpose="compare")
        for batch in pipeline.dataset().as_numpy_iterator():
            for key, (size, color) in zip(batch["key"], batch[COLUMNS], strict=True):
                row = int(keys[key][-8:]) - 1
                assert size == np.float32(sizes[row]) and COLORS[int(color)] == table["color"][row]
    trained = open_input_pipeline(params, "gathered", data, split="train", purpose="train")
    inputs, labels = next(iter(trained.dataset()))
    assert sorted(inputs) == [COLUMNS, "text"] and len(labels) == len(inputs["text"])


@pytest.mark.parametrize("form", ["items.csv", "items.jsonl"])
def test_rows_are_predicted_and_served_as_the_model_answers(listed, tmp_path, form):
    table, params, layout = listed
    pipelines = {"p": {"read": "shards"}}
    params = params_of({}, data=params.data.model_dump(), pipelines=pipelines)
    model = save_untrained(params, layout)
    examples = read_manifest(layout.manifest).for_split("validation")
    assert len(examples), "what the model is asked"
    rows = table.iloc[[int(name[-8:]) - 1 for name in examples["id"]]]
    FORMS[form](tmp_path / form, rows[["color", "text", "size"]].assign(price="0"))
    found, counts = predict_rows(model, tmp_path / form)
    assert counts.rejected == 0 and len(found) == len(rows)
    data = open_inputs(params, layout)
    pipeline = open_input_pipeline(params, "p", data, split="validation", purpose="compare")
    batches = [*pipeline.dataset().as_numpy_iterator()]
    said = {}
    with open_trained_model(model) as trained:
        for batch in batches:
            seen = {name: batch[name] for name in ("text", COLUMNS)}
            answers = tf.nn.softmax(trained.model(seen)).numpy().max(axis=1)
            said |= dict(zip(batch["key"].tolist(), answers.tolist(), strict=True))
    expected = [said[key] for key in examples["key"]]
    np.testing.assert_allclose([float(one["probability"]) for one in found], expected, atol=1e-5)
    takes = export_file(model, tmp_path / "served")
    assert takes == "features: text string, size float32, color string"
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(
        {
            "text": tf.constant(rows["text"].tolist()),
            "size": tf.constant(pd.to_numeric(rows["size"]).to_numpy(), tf.float32),
            "color": tf.constant(rows["color"].tolist()),
        }
    )
    answers = served["probabilities"].numpy().max(axis=1)
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_what_has_no_columns_is_not_predicted(listed, tmp_path):
    _, params, layout = listed
    params = params_of({}, data=params.data.model_dump())
    model = save_untrained(params, layout)
    (tmp_path / "note.txt").write_text("a text alone")
    (tmp_path / "other.csv").write_text(
        "text,size,color\nfox,1,pink\nfox,one,red\nfox,,red\n,1,red\n"
    )
    (tmp_path / "less.csv").write_text("text,size\nfox,1\n")
    found, _ = predict_rows(model, *(tmp_path / f"{one}" for one in ("note.txt", "other.csv")))
    assert [one["error"] for one in found] == [
        "is no table, and the model sees columns of one as well",
        "color is 'pink', a category that the training has not seen",
        "size is 'one', no number",
        "",
        "text missing",
    ]
    _, counts = predict_rows(model, tmp_path / "less.csv")
    assert [one.reason for one in counts.first] == ["no column color; known: size, text"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred")  # by MLflow, of its own code
def test_numbers_are_predicted_of_texts_and_columns(tmp_path):
    folder = tmp_path / "project"
    (folder / "source").mkdir(parents=True)
    write_csv(folder / "source" / "items.csv", make_table(200))
    document = copy.deepcopy(SMALL) | {
        "preprocess": PREPROCESS,
        "augment": [],
        "postprocess": [],
        "batch_size": 8,
        "pipelines": {name: CONFIGS[name] for name in ("naive", "gathered_by_length")},
        "model": {"name": "text_classifier", "options": {"width": 8}},
    }
    document["data"] |= {
        "source": "text_table",
        "path": "source/items.csv",
        "label_kind": "number",
        "label_column": "price",
        "max_reject_fraction": 0.1,
        **SEEN,
    }
    document["train"] |= {"epochs": 12, "learning_rate": 0.01}
    write_params(folder, document)
    name = "gathered_by_length"
    run_stages(folder, "fetch", "ingest", "shard", "snapshot", "build@naive", f"build@{name}")
    run_stages(folder, f"train@{name}", f"profiling@{name}", "report")
    trained = TrainResult.read(Layout(folder).results(name))
    assert trained.test["mae"] < trained.held_out.constant_metric / 3, "the size tells the price"
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    logged = client.search_logged_models([one.experiment_id for one in client.search_experiments()])
    served = mlflow.models.Model.load(logged[0].artifact_location.removeprefix("file://"))
    assert sorted(served.signature.inputs.input_names()) == [COLUMNS, "text"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"numeric": ["color"], "categorical": []}, "column color, of data.numeric, holds text"),
        ({"numeric": ["siz"], "missing": "reject"}, "no column siz; did you mean size?"),
        ({"numeric": ["size", "text"]}, r"text \(data.text_column and data.numeric\)"),
        ({"label_kind": "number"}, "label column label holds text, and data.label_kind: number"),
        ({"missing": {"color": "median"}}, "column color holds categories"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused_by_their_keys(tmp_path, data, said):
    write_csv(tmp_path / "items.csv", make_table(40))
    settings = DataSettings.model_validate(data_of(tmp_path / "items.csv", **data))
    with pytest.raises(UnreadableSource, match=said):
        ingest(settings, tmp_path / "manifest")


def test_a_run_is_refused_before_it_starts(tmp_path):
    write_csv(tmp_path / "items.csv", make_table(40))
    (tmp_path / "params.yaml").touch()
    settings = DataSettings.model_validate(data_of(tmp_path / "items.csv", numeric=["siz"]))
    with pytest.raises(UnreadableSource, match="no column siz"):
        check_table(tmp_path, settings, changed=True)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"pipelines": {"p": {"read": "snapshot", "batch": {"pack": 64}}}},
            "texts with columns are not packed",
        ),
        (
            {
                "data": {"source": "text_table", "path": "x", "label_kind": "number"},
                "pipelines": {"p": {"read": "snapshot", "batch": {"pack": 64}}},
            },
            "texts with numbers to predict are not packed",
        ),
        ({"window": {"tokens": 8}}, "data.numeric: window.tokens predicts the next token"),
        ({"data": {"source": "text_folder", "path": "x", "numeric": ["a"]}}, "has no columns"),
        ({"data": {"source": "text_table", "path": "x", "ignore": ["a"]}}, "that are not named"),
    ],
)
def test_what_columns_do_not_go_with_is_refused(tmp_path, sections, said):
    with pytest.raises(InvalidParams, match=said):
        params_of({}, **{"data": data_of(tmp_path / "items.csv")} | sections)


def test_lines_of_text_files_have_no_columns(tmp_path):
    (tmp_path / "ham.txt").write_text("a text\n")
    settings = DataSettings.model_validate(data_of(tmp_path, source="text_lines"))
    with pytest.raises(UnreadableSource, match="have no column size; use JSON lines"):
        ingest(settings, tmp_path / "manifest")


def write_items(path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_numbers_of_json_are_what_they_are_whatever_texts_look_like(tmp_path):
    lines = [
        {"text": f"a{n}", "label": "xy"[n % 2], "size": 1.001 + n, "weight": f"{n},5", "color": "r"}
        for n in range(30)
    ]
    write_items(tmp_path / "items.jsonl", lines)
    settings = data_of(tmp_path / "items.jsonl", numeric=["size", "weight"], missing="reject")
    manifest = ingest(DataSettings.model_validate(settings), tmp_path / "manifest")
    places = [int(name[-8:]) - 1 for name in manifest.examples["id"]]
    expected = [[1.001 + place, place + 0.5, 0] for place in places]
    np.testing.assert_allclose(np.asarray(manifest.columns), expected, rtol=1e-6)
    settings["decimal"] = ","
    again = ingest(DataSettings.model_validate(settings), tmp_path / "again")
    np.testing.assert_array_equal(np.asarray(again.columns), np.asarray(manifest.columns))


def test_a_key_may_be_left_out_of_a_line_and_not_of_all(tmp_path):
    lines = [{"text": f"a{n}", "label": "xy"[n % 2], "size": n, "color": "red"} for n in range(30)]
    del lines[0]["size"]
    (tmp_path / "items.jsonl").write_text("\n")
    with (tmp_path / "items.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    settings = DataSettings.model_validate(data_of(tmp_path / "items.jsonl"))
    assert len(ingest(settings, tmp_path / "manifest").examples) == 30
    other = {"categorical": ["colour"], "missing": {"colour": "category"}}
    settings = DataSettings.model_validate(data_of(tmp_path / "items.jsonl", **other))
    with pytest.raises(UnreadableSource, match="all lines: no column colour; did you mean color"):
        ingest(settings, tmp_path / "manifest")


def test_a_stray_quote_joins_no_rows_with_numbers_to_predict(tmp_path):
    rows = [f"text {number},{number}.5" for number in range(30)]
    rows[7:10] = ['"two,20.5', "three,30.5", 'four",40.5']
    (tmp_path / "items.csv").write_text("\n".join(["text,price", *rows]) + "\n")
    settings = DataSettings(
        source="text_table",
        path=str(tmp_path / "items.csv"),
        label_kind="number",
        label_column="price",
    )
    with pytest.raises(UnreadableSource, match="line 9 in it reads as a row of its own"):
        ingest(settings, tmp_path / "manifest")


def test_a_cell_of_a_line_is_one_value(tmp_path):
    lines = [{"text": "a", "label": "x", "size": [1], "color": "red"}]
    lines += [{"text": f"b{n}", "label": "xy"[n % 2], "size": n, "color": "red"} for n in range(30)]
    write_items(tmp_path / "items.jsonl", lines)
    settings = DataSettings.model_validate(data_of(tmp_path / "items.jsonl"))
    manifest = ingest(settings, tmp_path / "manifest")
    assert manifest.rejected["reason"].tolist() == ["size is list, no single value"]
