"""Damaged files of earlier stages are named; undecodable records are named or left out."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.fetch import fetch
from tests.support.made_up import KINDS, folder_of, write_made_up
from tests.support.prepared import snapshot
from throughline.data.columns.index import map_column, read_index
from throughline.data.columns.stored import Destination
from throughline.data.manifest import read_manifest, write_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import Decode, Resize
from throughline.settings import ShardSettings, SnapshotSettings
from throughline.shared.errors import CorruptShard, MissingInput, UserError
from throughline.shared.files import digest_blake2b

pytestmark = pytest.mark.integration


def shard_again(folder: Path) -> None:
    manifest = replace(read_manifest(folder / "manifest"), folder=folder / "manifest")
    shard(manifest, folder / "again", settings=ShardSettings(writers=1))


# The file, what reads it, and the stage that makes it again.
CASES: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("manifest/manifest.json", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/examples.parquet", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/rejected.csv", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/values.npy", shard_again, "ingest"),
    ("shards/index.json", lambda folder: read_shard_index(folder / "shards"), "shard"),
    ("snapshot/index.json", lambda folder: read_index(folder / "snapshot"), "snapshot"),
    ("none/origin.json", lambda folder: fetch("none", folder), "fetch"),
    *(
        (
            kind.path(folder_of(kind, Path())).as_posix(),
            lambda folder, kind=kind: kind.read(folder_of(kind, folder)),
            kind.STAGE.format(name="fast"),
        )
        for kind in KINDS
    ),
)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "without its end": lambda data: data[:-3],
    "noise": lambda data: bytes((byte * 7 + 3) % 256 for byte in range(max(10, len(data)))),
    "nested without end": lambda data: b"[" * 200_000,
}


@pytest.fixture(scope="module")
def whole(arrays, tmp_path_factory):
    """What all stages write, as far as they write these files; results are made up."""
    folder = shutil.copytree(arrays, tmp_path_factory.mktemp("damaged") / "data")
    shards = folder / "shards"
    snapshot(read_shard_index(shards), shards, folder / "snapshot", preprocess=(Decode(),))
    fetch("none", folder)
    for kind in KINDS:
        write_made_up(kind, folder)
    return folder


@pytest.mark.parametrize(("name", "read", "stage"), CASES, ids=[case[0] for case in CASES])
def test_a_damaged_file_is_named_with_what_makes_it_again(whole, request, name, read, stage):
    read(whole)
    data = (whole / name).read_bytes()
    request.addfinalizer(lambda: (whole / name).write_bytes(data))
    for damage, change in DAMAGES.items():
        (whole / name).write_bytes(change(data))
        with pytest.raises(UserError) as caught:
            read(whole)
        said = str(caught.value)
        assert str(whole / name) in said and f"`dvc repro {stage}`" in said, damage
        assert "\n" not in said and (damage != "empty" or "is empty" in said), damage


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.FILE)
def test_results_of_another_form_are_named_with_what_makes_them_again(tmp_path, kind):
    path = write_made_up(kind, tmp_path)
    for content in ("[]", "null", '{"other": 1}'):
        path.write_text(content)
        with pytest.raises(MissingInput) as caught:
            kind.read(folder_of(kind, tmp_path))
        said = str(caught.value)
        assert str(path) in said and f"run `dvc repro {kind.STAGE.format(name='fast')}`" in said
        assert "\n" not in said, content


PREPROCESS = (Decode(), Resize(height=8, width=8))


@pytest.fixture(scope="module")
def undecodable(photos, tmp_path_factory):
    """A folder of shards, its manifest, and two ids of it that another decoder cannot decode."""
    folder, manifest = tmp_path_factory.mktemp("undecodable"), read_manifest(photos / "manifest")
    examples = manifest.examples.copy()
    victims = examples[examples["split"] == "train"]["id"].tolist()[:2]
    for number, row in examples[examples["id"].isin(victims)].iterrows():
        data = Path(row["uri"]).read_bytes()[:200] + b"\xff\xd9"
        path = folder / f"{number}.jpg"
        path.write_bytes(data)
        found = [str(path), len(data), digest_blake2b(data)]
        examples.loc[number, ["uri", "bytes", "digest"]] = found
    (folder / "manifest").mkdir()
    manifest = replace(manifest, examples=examples, folder=folder / "manifest")
    write_manifest(manifest)
    shard(manifest, folder / "shards", settings=ShardSettings(min_shards=3, writers=1))
    return folder, manifest, victims


def take(folder, manifest, settings):
    names = dict(zip(manifest.examples["key"], manifest.examples["id"], strict=True))
    shards, out = folder / "shards", Destination(folder=folder / "snapshot")
    options = {"preprocess": PREPROCESS, "settings": settings, "names": lambda: names}
    return write_snapshot(read_shard_index(shards), ShardFiles(folder=shards), out, **options).index


def test_the_example_of_a_record_that_cannot_be_decoded_is_named_and_too_many_stop_it(undecodable):
    folder, manifest, victims = undecodable
    said = r"train-0000.*: record \d+ \(example .*\) cannot be decoded: .*; repair or remove the"
    with pytest.raises(CorruptShard, match=said) as caught:
        take(folder, manifest, SnapshotSettings())
    assert any(f"(example {victim})" in str(caught.value) for victim in victims)
    assert not (folder / "snapshot").exists()
    with pytest.raises(CorruptShard, match=r"2 of 60 examples cannot be read, 3.33%; .* 1.00%"):
        take(folder, manifest, SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.01))


@pytest.mark.slow
def test_records_that_cannot_be_decoded_are_left_out_where_that_is_wished(undecodable, capsys):
    folder, manifest, victims = undecodable
    index = take(folder, manifest, SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.1))
    said = capsys.readouterr().out
    assert all(f"(example {victim}) cannot be decoded" in said for victim in victims)
    assert "examples dropped: 2" in said
    places = {name: folder / name for name in ("manifest", "shards", "snapshot")}
    stored = open_prepared_data(**places, preprocess=PREPROCESS)
    lost = manifest.examples[manifest.examples["id"].isin(victims)]["key"]
    expected = {*manifest.for_split("train")["key"]} - {*lost}
    column = next(column for column in index.columns if column.name == "key")
    keys = map_column(folder / "snapshot", "train", column, index.splits["train"].count)
    assert {*keys.tolist()} == expected == {*stored.files("train").keys}
    assert stored.shards.examples("train") == len(expected)
    assert not [problem for one in stored.shards.shards for problem in stored.find_damage(one)]
