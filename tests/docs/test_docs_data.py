"""Every recipe of docs/data.md reads files as the page shows them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from tests.support.docs_blocks import Block, read_blocks
from tests.support.project import ROOT
from tests.support.small_data import picture
from throughline.data.ingest import ingest

PAGE = ROOT / "docs" / "data.md"
RECIPES = [block for block in read_blocks(PAGE) if block.language == "yaml"]
EXAMPLES = 60


def write_photos(folder: Path, names: tuple[str, ...]) -> None:
    for number in range(EXAMPLES):
        path = folder / names[number % len(names)] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, size=(30 + number % 7, 24)).save(path)


def write_list(folder: Path) -> None:
    write_photos(folder / "images", (".",))
    names = sorted(file.name for file in (folder / "images").iterdir())
    splits = ("train", "train", "test", "")
    rows = [
        f"images/{name},{('cat', 'dog')[number % 2]},{splits[number % 4]}"
        for number, name in enumerate(names)
    ]
    (folder / "list.csv").write_text("\n".join(["path,label,split", *rows]))


def write_houses(folder: Path) -> None:
    write_photos(folder / "images", (".",))
    rows = [
        f"images/{number:03d}.jpg,{350000 + number},{'' if number == 7 else 61.5},"
        f"{('North', 'South')[number % 2]}"
        for number in range(EXAMPLES)
    ]
    (folder / "list.csv").write_text("\n".join(["path,price,area,district", *rows]))


def write_reviews(path: Path) -> None:
    rows = [
        f'"Arrived after {number} days, works",{number % 5 + 1},{"" if number == 7 else 19.9},'
        f"{('North', 'South')[number % 2]}"
        for number in range(EXAMPLES)
    ]
    path.write_text("\n".join(["review,stars,price,shop", *rows]))


def write_arrays(path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 12, 10), np.uint8)
    np.savez(path, x=images, y=np.asarray(["cat", "dog"])[np.arange(EXAMPLES) % 2])


def write_flowers(path: Path) -> None:
    rows = [
        f"{4 + number / 10},{number / 7:.2f},{('white', 'red')[number % 2]},"
        f"{('setosa', 'virginica')[number % 2]}"
        for number in range(EXAMPLES)
    ]
    path.write_text("\n".join(["sepal,petal,color,species", *rows]))


def write_prices(path: Path) -> None:
    rows = [
        f"{number};2024-03-{1 + number % 28:02d};{'n/a' if number == 7 else f'{50 + number},5'};"
        f'{("North", "South")[number % 2]};"1.{200 + number}.000,00"'
        for number in range(EXAMPLES)
    ]
    path.write_text("\n".join(["id;date;area;district;price", *rows]))


def write_power(path: Path) -> None:
    rows = [
        f"2024-01-{1 + hour // 24:02d} {hour % 24:02d}:00,{300 + hour % 24},{hour % 7 / 2}"
        for hour in range(24 * 28)
    ]
    path.write_text("\n".join(["time,load,temperature", *rows]))


def write_texts(folder: Path) -> None:
    for number in range(EXAMPLES):
        path = folder / ("spam", "ham")[number % 2] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text number {number}")


def write_lines(path: Path) -> None:
    rows = [
        {"text": f"text number {number}", "label": ("spam", "ham")[number % 2]}
        for number in range(EXAMPLES)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def write_text_table(path: Path) -> None:
    rows = [f"text number {number},{('spam', 'ham')[number % 2]}" for number in range(EXAMPLES)]
    path.write_text("\n".join(["text,label", *rows]))


def write_shards(folder: Path) -> None:
    import tensorflow as tf

    folder.mkdir()
    (folder / "labels.txt").write_text("cat\ndog\n")
    for part in range(2):
        with tf.io.TFRecordWriter(str(folder / f"train-{part:05d}-of-00002.tfrecord")) as writer:
            for number in range(part, EXAMPLES, 2):
                photo = io.BytesIO()
                picture(number).save(photo, "JPEG")
                example = tf.train.Example()
                example.features.feature["image"].bytes_list.value.append(photo.getvalue())
                example.features.feature["label"].int64_list.value.append(number // 2 % 2)
                writer.write(example.SerializeToString())


def write_tfds(folder: Path) -> None:
    """A dataset of two splits with the metadata that TensorFlow Datasets writes."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    folder.mkdir(parents=True)
    image, label = (
        tfds.features.Image(shape=(None, None, 3)),
        tfds.features.ClassLabel(names=["cat", "dog"]),
    )
    infos = []
    for split, numbers in (("train", range(48)), ("test", range(48, EXAMPLES))):
        name = f"photos-{split}.tfrecord-00000-of-00001"
        with tf.io.TFRecordWriter(str(folder / name)) as writer:
            for number in numbers:
                photo = io.BytesIO()
                picture(number).save(photo, "JPEG")
                example = tf.train.Example()
                example.features.feature["image"].bytes_list.value.append(photo.getvalue())
                example.features.feature["label"].int64_list.value.append(number % 2)
                writer.write(example.SerializeToString())
        template = tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name="photos", split=split, filetype_suffix="tfrecord"
        )
        infos.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=[len(numbers)], num_bytes=0, filename_template=template
            )
        )
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=tfds.features.FeaturesDict({"image": image, "label": label}),
        split_infos=infos,
    )


FILES: dict[str, Callable[[Path], None]] = {
    "my/photos": lambda path: write_photos(path, ("cat", "dog/sub")),
    "my/split_photos": lambda path: write_photos(
        path, ("train/cat", "val/cat", "test/cat", "train/dog", "val/dog", "test/dog")
    ),
    "my/listed": write_list,
    "my/houses": write_houses,
    "my/images.npz": write_arrays,
    "my/flowers.csv": write_flowers,
    "my/prices.csv": write_prices,
    "my/power.csv": write_power,
    "my/mails": write_texts,
    "my/mails.csv": write_text_table,
    "my/reviews.csv": write_reviews,
    "my/mails.jsonl": write_lines,
    "my/shards": write_shards,
    "my/tfds/mnist/3.0.1": write_tfds,
}
CLASSES = {
    "my/photos": ("cat", "dog/sub"),
    "my/flowers.csv": ("setosa", "virginica"),
    "my/houses": (),
    "my/prices.csv": (),
    "my/power.csv": (),
    "my/mails": ("ham", "spam"),
    "my/mails.csv": ("ham", "spam"),
    "my/reviews.csv": (),
    "my/mails.jsonl": ("ham", "spam"),
    "my/tfds/mnist/3.0.1": ("cat", "dog"),
}


def path_of(block: Block) -> str:
    return YAML(typ="safe").load(block.text)["data"]["path"]


def test_every_recipe_has_its_files():
    assert sorted(FILES) == sorted(map(path_of, RECIPES))


@pytest.mark.integration
@pytest.mark.parametrize("block", RECIPES, ids=path_of)
def test_a_recipe_reads_what_the_page_shows(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = path_of(block)
    (tmp_path / "my").mkdir()
    FILES[path](Path(path))
    overlay = YAML(typ="safe").load(block.text)
    data = resolve(ROOT, Changes(overlay=overlay)).params.data
    manifest = ingest(data, Path("manifest"))
    assert manifest.classes == CLASSES.get(path, ("cat", "dog"))
    assert (tmp_path / "manifest" / "rejected.csv").read_text() == "id,reason\n"


def test_the_page_shows_the_header_of_every_table():
    blocks = [block.text for block in read_blocks(PAGE) if not block.language]
    shown = re.findall(r"^(?:.* )?(\S+)$", "\n".join(blocks), re.MULTILINE)
    for header in (
        "path,label,split",
        "path,price,area,district",
        "review,stars,price,shop",
        "sepal,petal,color,species",
        "id;date;area;district;price",
        "time,load,temperature",
    ):
        assert header in shown
