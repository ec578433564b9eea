"""No example is in two splits, none has a label that cannot be learned, whatever a table says."""

import numpy as np
import pandas as pd
import pytest

from tests.support.small_data import data_settings, read_reasons, save_photos
from throughline.data import ingest as stage
from throughline.data.ingest import ingest
from throughline.shared.errors import UnusableDataset


@pytest.fixture
def images(tmp_path):
    """24 images of two classes, and rows that list them: 12 to train, 6 to validate, 6 to test."""
    paths = sorted(save_photos(tmp_path, 24, "", suffix="png").glob("*.png"))
    splits = ["train"] * 12 + ["validation"] * 6 + ["test"] * 6
    named = zip(paths, "ab" * 12, splits, strict=True)
    return [{"path": path.name, "label": label, "split": split} for path, label, split in named]


def listed(rows, folder, **changes):
    pd.DataFrame(rows).to_csv(folder / "table.csv", index=False)
    settings = data_settings(folder / "table.csv", "image_table", **changes)
    return ingest(settings, folder / "manifest")


@pytest.mark.parametrize("duplicates", ["reject", "keep"])
@pytest.mark.parametrize(
    ("path", "label", "again", "reason", "split"),
    [
        ("18.png", "a", "train", ", there in the test split", "test"),
        ("00.png", "b", "test", ", there labeled b, there in the test split", "test"),
        ("00.png", "a", "train", "", "train"),
        ("18.png", "a", None, ", there in the test split", "test"),  # which is not dealt
    ],
)
def test_an_image_listed_twice_is_one_example_and_stays_held_out(
    images, tmp_path, duplicates, path, label, again, reason, split
):
    row = {"path": path, "label": label, "split": again}
    manifest = listed([*images, row], tmp_path, duplicates=duplicates)
    assert read_reasons(manifest) == {path: f"listed twice{reason}"}
    assert len(manifest.examples) == 24 and manifest.examples["key"].is_unique
    assert manifest.examples.groupby("digest")["split"].nunique().max() == 1
    assert manifest.examples.set_index("id").loc[path, "split"] == split


@pytest.mark.parametrize(
    ("source", "name", "dropped"),
    [("image_table", "row 23: 22.png", []), ("table", "row 23", ["path"])],
)
def test_an_unknown_split_is_rejected_with_its_name(images, tmp_path, source, name, dropped):
    rows = [*images[:-2], {**images[-2], "split": "Train"}, {**images[-1], "split": " test "}]
    frame = pd.DataFrame(rows).assign(size=np.arange(24) / 2).drop(columns=dropped)
    frame.to_csv(tmp_path / "table.csv", index=False)
    manifest = ingest(data_settings(tmp_path / "table.csv", source), tmp_path / "manifest")
    reason = "split is not one of train, validation, test: Train"
    assert read_reasons(manifest) == {name: reason}
    assert manifest.stats["examples"] == {"train": 12, "validation": 6, "test": 5}


@pytest.mark.parametrize("kind", ["number", "class"])
@pytest.mark.parametrize(
    ("label", "reason"),
    [("-inf", "label is not a number: '-inf'"), ("1e300", "label exceeds"), ("", "label missing")],
)
def test_a_label_that_is_no_finite_number_is_rejected(tmp_path, kind, label, reason):
    labels = [str(number % 3 + (0.5 if kind == "number" else 0)) for number in range(60)] + [label]
    frame = pd.DataFrame({"size": np.arange(61) / 7, "label": labels})
    frame.to_csv(tmp_path / "table.csv", index=False)
    manifest = ingest(data_settings(tmp_path / "table.csv", "table"), tmp_path / "manifest")
    ((row, said),) = read_reasons(manifest).items()
    assert row == "row 61" and said.startswith(reason)
    assert manifest.schema.target.encoding.name == kind
    assert np.isfinite(manifest.examples["label"].to_numpy(float)).all()


def test_missing_validation_is_taken_from_training_and_missing_training_refused(images, tmp_path):
    for other in ("train", None):
        rows = [{**row, "split": "test" if row["split"] == "test" else other} for row in images]
        assert listed(rows, tmp_path).stats["examples"]["validation"] > 0
    with pytest.raises(UnusableDataset, match="names the split of every example, in a column"):
        listed([{**row, "split": "test"} for row in images], tmp_path)


def test_two_examples_with_the_same_key_are_refused(images, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "example_key", lambda identity: 7)
    with pytest.raises(UnusableDataset, match=r"\d\d.png and \d\d.png have the same key"):
        listed(images, tmp_path)
