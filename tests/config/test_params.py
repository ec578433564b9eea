"""params.yaml is checked as a whole before anything runs: every problem at once, with its path."""

import re

import pytest

from tasks.identities import resolve_settings
from tests.support.parameters import document, problems
from throughline.config.params import check, load_params
from throughline.config.params_checks import RAW
from throughline.config.params_file import apply_overrides
from throughline.plan.augmentations import Flip
from throughline.settings import PipelineConfig
from throughline.shared.errors import InvalidCode, InvalidParams
from throughline.shared.layout import STORE_HOME, WORKSPACES

TEXT = {
    "data__source": "text_folder",
    "preprocess": "[{tokenize: {kind: bytes}}]",
    "postprocess": "[]",
    "model__name": "auto",
}
WINDOWS = {**TEXT, "data__label_kind": "none", "window__tokens": 24}
PART = "{read: snapshot, shuffle: {kind: global}, snapshot: {fraction: 0.3}}"
PARTLY = {"pipelines__part": PART}
TABLE = {"data__source": "table", "postprocess": "[]"}
STORED = "only images can be stored in part"
BUCKET = {"data__path": "s3://bucket/photos"}
WEIGHTS = {"0": 1.0, "1": 5.0}


def naive(config: str) -> dict[str, str]:
    return {"pipelines__naive": config}


def shuffled(shuffle: str) -> dict[str, str]:
    return naive(f"{{read: snapshot, shuffle: {{{shuffle}}}}}")


def test_all_problems_are_told_together():
    found = problems(
        data__sorce="x",
        data__label="y",
        data__source="image_foldr",
        batch_size=0,
        model__widht=8,
        train__epochs="two",
        pipelines__naive__prefetc=1,
        preprocess="[decode, {resize: {heigth: 3, width: 4}}, {random_crop: {width: 3}}]",
    )
    for expected in (
        "params.yaml: data.sorce is not a field; did you mean source?",
        "data.source: found image_foldr, which is not a kind of input; did you mean image_folder?",
        "params.yaml: batch_size: input should be greater than or equal to 1; found 0",
        "did you mean weights? An argument of the builder goes to model.options.widht",
        "params.yaml: train.epochs: input should be a valid integer",
        "params.yaml: pipelines.naive.prefetc is not a field; did you mean prefetch?",
        "data.label is not a field; did you mean labels or label_column or label_kind?",
        "params.yaml: preprocess[1].resize.heigth is not an argument; did you mean height?",
        "params.yaml: preprocess[2].random_crop.height is missing",
    ):
        assert expected in found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (naive("{read: shards, interleave: {cycle_length: 2, parallel: 3}}"),
         "pipelines.naive.interleave.parallel: 3 readers have only `cycle_length: 2` shards"),
        ({"preprocess": "[decode, flip]"}, "preprocess: flip is random"),
        ({"augment": "[rescale]"}, "augment: rescale is deterministic; move it to postprocess"),
        ({"preprocess": "[{resize: {height: 3, width: 3}}, decode]"},
         "preprocess: `decode` must come first and only once, or be left out"),
        ({"model__name": "mobilenetv2"}, "is not a model; did you mean MobileNetV2?"),
        ({"pipelines__my-config": "{read: shards}"}, "my-config: names are Python identifiers"),
        ({"data__split": "{validation: 0.5, test: 0.5}"}, "leave nothing to train on"),
        ({"postprocess": "[{standardize: {mean: [0.5]}}]"},
         "postprocess[0].standardize: give `mean` and `deviation`, or neither"),
        ({"postprocess": "[{standardize: {mean: [0.5, 0.5], deviation: [0.5]}}]"},
         "postprocess[0].standardize: give as many `deviation` as `mean` values"),
        (naive("{decode: {crop: fused}}"),
         "pipelines.naive.decode.crop: only a `center_crop` right after `decode` fuses"),
        (naive("{shuffle: {kind: none, size: 9}}"),
         "pipelines.naive.shuffle.size: `kind: none` has no size; drop it"),
        ({"preprocess": "[{resize: {height: 3, width: 3, method: area, antialias: true}}]"},
         "preprocess[0].resize: `antialias` has no effect with `method: area`; drop it"),
        ({"train__warm_up_epochs": 2, "train__epochs": 2},
         "train.warm_up_epochs: 2 of 2 epochs would leave none at train.learning_rate"),
        ({**naive("{service: {}}"), "train__deterministic": True},
         "pipelines.naive.service: its workers race each other, so the order of batches is not"),
        ({"train__jit_compile": True, "train__deterministic": True},
         "train.jit_compile: Keras turns XLA off with train.deterministic"),
        ({"train__optimizer": "{sgd: {learning_rate: 0.1}}"},
         "train.optimizer: the rate has a key of its own, train.learning_rate"),
        ({"train__metrics": "[auto, {}]"}, "train.metrics[1]: expected one name with its argum"),
        ({"train__optimizer": "adamww"}, "is not one of Keras' optimizers; did you mean AdamW?"),
        ({"train__loss": "{sparse_crossentropy: {}}"}, "is not one of Keras' losses; did you mean"),
        ({"train__metrics": "[auto, 'no_module:score']"}, "module no_module cannot be found"),
        ({"data__label_kind": "number"}, "label_kind: number is for tables, JSON lines, records"),
        ({"data__split": "{validation: 0}"}, "data.split.validation: must be above 0"),
        (naive("{map: {parallel: true}}"),
         "expected none, auto, cores or a whole number from 1; found True"),
        ({"window__stride": 2},
         "window.stride: only time series have it, and the source image_folder is not one"),
        ({**BUCKET, "storage__url": "s3://bucket"}, "storage.url: it overlaps with data.path"),
        ({"data__path": "gs://bucket/photos"},
         "data.path: DVC, which watches the bucket for changes, needs dvc-gs"),
        ({**BUCKET, "data__source": "image_table"},
         "data.source: image_table is read from a local folder only; copy s3://bucket/photos"),
        ({**BUCKET, **naive("{read: files}")},
         "pipelines.naive.read: files are read from a local folder only"),
        ({"data__path": f"{RAW}/mine"},
         "data.path: data/raw/mine is in data/raw, which is for data.fetch only"),
        ({"data__path": "data"}, "data.path: data is where stages write (data/identities); put"),
        ({"data__path": "data/shards/x"}, "data.path: data/shards/x is where stages write (data/"),
        ({**PARTLY, "snapshot__fraction": 0.2},
         "pipelines.part.snapshot.fraction: reads 0.3 of the rows, but the snapshot stores 0.2"),
        ({**PARTLY, "shard__compression": "gzip"},
         "snapshot.fraction: rows that are not stored are decoded from uncompressed shards"),
        ({**PARTLY, "shard__compression": "gzip", "snapshot__fraction": 1},
         "pipelines.part.snapshot.fraction: rows that are not read from the snapshot are decoded"),
        ({**TEXT, "preprocess": "[]"}, "preprocess: text needs one `tokenize`"),
        ({**TEXT, "preprocess": "[{truncate: {tokens: 9}}, tokenize]"},
         "truncate counts tokens; put it after `tokenize`"),
        ({**TEXT, "preprocess": "[{tokenize: {model: no/file}}]"},
         "tokenize.model: no/file does not exist"),
        ({**TEXT, "preprocess": "[{tokenize: {kind: bytes, model: x}}]"}, "bytes` needs no file"),
        ({**TEXT, "pipelines__naive__service": "{}"}, "workers' batches differ in length"),
        ({**TEXT, **naive("{read: snapshot, shuffle: {kind: global}, snapshot_on: device}")},
         "pipelines.naive.snapshot_on: texts differ in length"),
        ({**TEXT, "model__name": "small_cnn"}, "small_cnn takes images, but the source has text"),
        ({**WINDOWS, "window": "{}"},
         "data.label_kind: none is only for predicting the next tokens"),
        ({**WINDOWS, "model__name": "emulated"}, "emulated does not predict next tokens"),
        ({"data__source": "arrays", "window__tokens": 9}, "tokens: the source arrays is not"),
        ({**TEXT, "model__name": "transformer_decoder"}, "predicts next tokens"),
        ({"data__source": "time_series", "data__missing": "median"},
         "a time series accepts reject, interpolate, previous or cut"),
        ({**TABLE, "data__missing": "previous"},
         "interpolate, previous and cut are for source: time_series"),
        ({"data__missing": "median"}, "the source image_folder is not a table; remove this key"),
        (shuffled("kind: lanes"), "shuffle.lanes: `kind: lanes` needs it"),
        (shuffled("kind: global, lanes: 4"), "`kind: global` has no lanes"),
        (shuffled("kind: lanes, lanes: 5"), "256, is not a multiple of 5"),
        ({"train__optimizer": "{adamw: 1e-4}"}, "train.optimizer.adamw: input should be"),
        ({"preprocess": "[5]"}, "preprocess[0]: expected an op name"),
        ({"pipelines__naive__sampling": "{a: -1}"}, "pipelines.naive.sampling"),
        ({"preprocess": "[{cutout: {8}}]"}, "preprocess[0].cutout.8: "),
        ({"preprocess": '["pathlib:Path"]'}, "preprocess[0]: pathlib:Path is not a class"),
        ({**TABLE, **PARTLY}, f"params.yaml: pipelines.part.snapshot.fraction: {STORED}"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_once_with_the_reason(change, expected):
    found = problems(**change)
    assert expected in found and "\n" not in found


def test_data_may_be_in_a_bucket_and_a_secret_in_its_url_is_not_repeated():
    path = "s3://bucket/photos of cats"
    assert check(document(data__path=path)).data.path == path
    for url in ("s3://key:hidden@bucket/photos", "s3://bucket/photos?sig=hidden"):
        found = problems(data__path=url)
        assert "data.path: found a user, password or query" in found and "hidden" not in found


@pytest.mark.parametrize(
    ("changes", "stored"),
    [
        ({}, 1.0),
        (PARTLY, 0.3),
        ({**PARTLY, "pipelines__more": PART.replace("0.3", "0.5")}, 0.5),
        ({**PARTLY, "pipelines__whole": PART.replace("0.3", "1")}, 1.0),
        ({**PARTLY, "snapshot__fraction": 0.75}, 0.75),
        ({"snapshot__fraction": 0}, 0.0),
    ],
)
def test_what_is_stored_is_the_most_that_is_read_unless_it_is_said(changes, stored):
    assert check(document(**changes)).snapshot.stored_fraction == stored
    assert resolve_settings(document(**changes))["snapshot"]["fraction"] == stored


def test_an_op_of_ones_own_is_called_as_its_class_unless_it_says_more(tmp_path, monkeypatch):
    (tmp_path / "own_sharpen.py").write_text(
        "from throughline.plan.ops import Op\n\n\nclass Sharpen(Op):\n"
        "    def compute(self, element, draw):\n        return element\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    op = check(document(preprocess='["own_sharpen:Sharpen"]')).preprocess[1]
    assert (op.name, op.identity["op"], Flip().name) == ("Sharpen", "Sharpen", "flip")


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "does not exist"), ("a: [1,", "not valid YAML"), ("a: 1\na: 2\n", "duplicate key")],
)
def test_a_missing_or_broken_file_is_reported(tmp_path, text, said):
    if text is not None:
        (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(InvalidParams, match=said):
        load_params(tmp_path / "params.yaml")
    with pytest.raises(InvalidParams, match="is a folder; expected a YAML file"):
        load_params(tmp_path)


@pytest.mark.parametrize(
    ("override", "now"),
    [
        ("finish=[rescale]", "finish is now called postprocess"),
        ("measure.rounds=2", "measure.rounds is now called measure.seconds, of the race of all"),
        ("pipelines.naive.finish=device", "pipelines.naive.finish is now called postprocess_on"),
        ("pipelines.naive.decode.scale=2", "pipelines.naive.decode.scale is now called ratio"),
        ("pipelines.naive.sample={kind: balanced}",
         "pipelines.naive.sample is now called sampling: uniform, balanced, or {class: weight}"),
    ],
)  # fmt: skip
def test_a_key_of_an_earlier_version_is_refused_with_its_new_name(override, now):
    changed = document()
    apply_overrides(changed, [override])
    with pytest.raises(InvalidParams, match=re.escape(now)):
        check(changed)


@pytest.mark.parametrize("override", ["train.epochs", "=3", "data.path.deeper=1"])
def test_malformed_overrides_are_refused(override):
    with pytest.raises(InvalidParams):
        apply_overrides(document(), [override])


def test_every_field_of_a_configuration_has_a_description():
    described = {*PipelineConfig.read_descriptions(), "map", "shuffle", "decode"}
    assert described == {*PipelineConfig.model_fields}


def test_classes_may_be_called_by_numbers():
    changed = document(train__class_weights="{0: 1, 1: 5}")
    changed["pipelines"]["naive"]["sampling"] = {0: 1, 1: 5}
    params = check(changed)
    assert (params.train.class_weights, params.pipelines["naive"].sampling) == (WEIGHTS, WEIGHTS)


def test_a_builder_is_read_as_python_reads_it(tmp_path, monkeypatch):
    source = tmp_path / "own_builders.py"
    source.write_text("def build(shape, outputs, /, width, *, depth=1): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = {"model__name": "own_builders:build"}
    assert check(document(**own, model__options="{width: 8, depth: 2}"))
    assert "has no such option" in problems(**own, model__options="{outputs: 8}")
    source.write_text("def build(:\n")
    with pytest.raises(InvalidCode, match=r"own_builders\.py, line 1: "):
        check(document(**own))


@pytest.mark.parametrize(
    ("source", "model", "postprocess"),
    [
        ("image_folder", "small_cnn", ["rescale"]),
        ("table", "mlp", ["standardize", "categories"]),
        ("time_series", "mlp", ["standardize"]),
        ("text_lines", "text_classifier", []),
    ],
)
def test_model_and_ops_fit_the_data_also_in_what_dvc_compares(source, model, postprocess):
    """So that stages run again once `auto` means another model, or the default other ops."""
    pipelines = {"naive": {"shuffle": {"kind": "none"}}}
    changed = {"data": {"source": source, "path": "x"}, "pipelines": pipelines}
    values = resolve_settings(changed)
    assert (values["model"]["name"], values["postprocess"]) == (model, postprocess)
    if source == "text_lines":
        changed["preprocess"] = [{"tokenize": {"kind": "bytes"}}]
    found = check({**changed, "model": {"options": {"width": 8}}}).model
    assert (found.name, found.options) == (model, {"width": 8})


def test_a_model_that_scales_its_input_gets_it_unscaled():
    refused = "postprocess: EfficientNetB0 scales its input itself"
    assert refused in problems(model__name="EfficientNetB0")
    assert check(document(model__name="EfficientNetB0", postprocess="[]"))
    within = {"model__name": "MobileNetV3Small"}
    assert check(document(**within))
    within["model__options"] = "{include_preprocessing: true}"
    assert "postprocess: MobileNetV3Small scales its input itself" in problems(**within)


@pytest.mark.parametrize("outputs", ["runs", "../../../runs"], ids=["own", "of the main project"])
def test_a_model_is_not_trained_on_from_an_output_of_dvc(tmp_path, monkeypatch, outputs):
    worktree, file = tmp_path / WORKSPACES / "wide", f"{outputs}/p/model.keras"
    (worktree / outputs / "p").mkdir(parents=True)
    monkeypatch.chdir(worktree)
    monkeypatch.setenv(STORE_HOME, str(tmp_path))
    for path in (file, "pretrained.keras"):
        (worktree / path).touch()
    for key, name in (("from", {}), ("weights", {"model__name": "mlp"})):
        said = problems(**{f"model__{key}": file}, **name)
        assert f"model.{key}: {file} is an output of train" in said
        assert f"`cp {file} pretrained.keras`" in said
        assert check(document(**{f"model__{key}": "pretrained.keras"}, **name))


@pytest.mark.parametrize(
    ("source", "monitor", "said"),
    [
        ("image_folder", "val_acuracy", "did you mean val_accuracy?"),
        ("image_folder", "val_mae", "training, which has val_loss, val_accuracy, loss, accuracy"),
        ("time_series", "val_accuracy", "has val_loss, val_mae, loss, mae"),
        ("table", "val_auc", "has val_loss, val_accuracy, val_mae, loss, accuracy, mae"),
        ("table", "val_mae", None),
        ("image_folder", "accuracy", None),
    ],
)
def test_early_stopping_watches_a_metric_there_is(source, monitor, said):
    stopping = {"train__early_stopping": f"{{monitor: {monitor}}}", "data__source": source}
    assert said in problems(**stopping) if said else check(document(**stopping))
    own = {**stopping, "train__metrics": "[auto, {mean: {name: acc}}]"}
    assert check(document(**own)), "which is asked before the first step"
