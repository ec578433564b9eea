"""A model that is fine-tuned gets inputs that mean what they meant in its first training."""

import numpy as np
import pytest

from tests.support.prepared import link_data, prepare, take_snapshot
from tests.support.saved_models import save_as_train_does
from tests.support.texts import params_of, prepare_texts
from throughline.assembly.inputs import open_inputs
from throughline.assembly.model import build_models_for
from throughline.config.params import check
from throughline.models.inference import TOKENIZER, open_trained_model
from throughline.shared.errors import UnknownModel
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration


def build(params, layout, path=None):
    """Build the model of the parameters; at `path` it is saved as train does it."""
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    if path:
        save_as_train_does(models, params, data, path)
    return models


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("texts"))


def test_a_model_of_text_is_trained_on_with_its_own_tokenizer_alone(texts, tmp_path):
    words, first = tmp_path / "words.txt", tmp_path / "first.keras"
    tokenize = {"kind": "wordpiece", "model": str(words)}

    def build_with(*lines, path=None, **model):
        """Build a model of texts in tokens of this vocabulary."""
        words.write_text("\n".join(lines) + "\n")
        params = params_of({}, preprocess=[{"tokenize": tokenize}], model=model)
        layout = Layout(tmp_path / "-".join(lines))
        if not layout.root.exists():
            take_snapshot(params, link_data(texts.root / "data", layout.root, snapshot=False))
        return build(params, layout, path)

    build_with("[UNK]", "the", "fox", name="text_classifier", path=first)
    again = build_with("[UNK]", "the", "fox", **{"from": str(first)})
    assert again.network.output_shape[-1] == 2
    with pytest.raises(UnknownModel) as refusal:
        build_with("[UNK]", "fox", "the", **{"from": str(first)})
    take = "`tokenize: {kind: wordpiece, lower: auto, model: FILE}`"
    assert f"{take} and `unzip -p {first} {TOKENIZER} > FILE`" in str(refusal.value)
    with pytest.raises(UnknownModel, match="trained with another tokenizer"):
        build(params_of({}, model={"from": str(first)}), texts)


@pytest.mark.slow
def test_a_transformer_that_is_trained_on_is_saved_with_what_its_layers_need(texts, tmp_path):
    first, second = tmp_path / "first.keras", tmp_path / "second.keras"
    expected = build(params_of({}), texts, first).full_model
    build(params_of({}, model={"from": str(first)}), texts, second)
    tokens = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    with open_trained_model(second) as trained:
        np.testing.assert_array_equal(trained.model(tokens), expected(tokens))


@pytest.mark.slow
def test_a_model_of_a_table_is_trained_on_with_the_same_columns_and_categories_alone(tmp_path):
    def colored(name, colors, **model):
        folder = tmp_path / name
        rows = [f"{number}.5,{colors[number % 2]},c{number // 2 % 2}" for number in range(40)]
        folder.mkdir()
        (folder / "table.csv").write_text("\n".join(["size,color,kind", *rows]) + "\n")
        data = {"source": "table", "path": str(folder / "table.csv"), "label_column": "kind"}
        ops = ["standardize", "categories"]
        more = {"model": model, "pipelines": {"p": {"read": "shards"}}}
        params = check({"data": data, "postprocess": ops, **more})
        return params, prepare(params, Layout(folder))

    first = tmp_path / "first.keras"
    build(*colored("first", ["red", "blue"]), path=first)
    further = {"from": str(first)}
    assert build(*colored("same", ["blue", "red"], **further)).network.output_shape[-1] == 2
    with pytest.raises(UnknownModel, match=r"other columns, or .*; its columns: size, color"):
        build(*colored("other", ["red", "green"], **further))
