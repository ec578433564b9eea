"""What is known of the data before a race, and the proof of the winner's examples."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.support.made_up import made_up
from tests.support.prepared import link_data, take_snapshot
from tests.support.project import SMALL
from tests.support.small_data import flip_bit
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.race.jobs import Entry
from throughline.race.sample import sample_shards
from throughline.race.training import Training
from throughline.results.snapshot import SnapshotCost
from throughline.settings import PipelineConfig
from throughline.shared.errors import UnequalConfigurations
from throughline.shared.layout import Layout
from throughline.tuning.budgets import find_limits, read_budgets
from throughline.tuning.survey import SnapshotBytes, prove_equal, survey

pytestmark = pytest.mark.integration
PARAMS = check(SMALL)


def project_in(folder, layout, **linked):
    """A project with prepared data, whose snapshot took nine seconds."""
    made = link_data(layout.root / "data", folder, **linked)
    replace(made_up(SnapshotCost), seconds=9.0).write(made.root / "data")
    return made


@pytest.fixture(scope="module")
def root(layout, tmp_path_factory):
    return project_in(tmp_path_factory.mktemp("surveyed"), layout).root


@pytest.fixture(scope="module", autouse=True)
def _made_up_needs():
    """What a training holds besides its steps takes a training to measure: see test_footprint."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("throughline.tuning.survey.measure_besides_steps", lambda *_: 64 << 20)
        yield


@pytest.fixture(scope="module")
def surveyed(root):
    return survey(PARAMS, root, [], find_limits(read_budgets(epochs=1), root))


def test_needs_are_what_is_kept_besides_a_process_and_the_shards(root, surveyed):
    data = open_inputs(PARAMS, Layout(root))
    assert surveyed.examples == data.shards.examples("train")
    assert surveyed.steps_per_epoch == -(-surveyed.examples // PARAMS.batch_size)
    families = {each.family: surveyed.needs[each.name] for each in surveyed.space.candidates}
    stored = sum(data.snapshot.bytes(split) for split in data.shards.splits)
    plain = families["stream"].ram_bytes
    assert plain > 50 * 2**20, "a process with TensorFlow"
    assert families["snapshot"].disk_bytes == stored
    assert families["snapshot"].prepare_s == 9.0
    assert families["stream"].disk_bytes == families["stream"].prepare_s == 0.0
    buffered = 2 * (surveyed.examples // 20) / surveyed.examples * data.snapshot.bytes("train")
    assert families["cache_memory"].ram_bytes - plain == pytest.approx(stored + buffered)
    assert families["cache_disk"].disk_bytes == stored, "held-out splits are cached, too"
    assert families["cache_disk"].ram_bytes == pytest.approx(plain + buffered)
    records = sum(shard.bytes for shard in data.shards.shards)
    assert families["arrays"].kept_bytes == records, "of all splits"
    assert families["arrays"].ram_bytes > plain + 2 * records, "while they are parsed"
    assert families["cache_memory"].kept_bytes == stored
    assert families["cache_disk"].written_bytes == stored
    assert families["snapshot"].written_bytes == 0.0
    assert families["cache_disk"].kept_bytes == families["stream"].kept_bytes == 0.0


def test_a_part_of_the_snapshot_fits_into_the_disk_and_the_memory_that_there_are(root):
    data = open_inputs(PARAMS, Layout(root))
    splits = data.shards.splits
    whole = sum(data.snapshot.bytes(split) for split in splits)
    values = sum(data.snapshot.splits[split].bytes(data.input_column) for split in splits)
    unlimited = find_limits(read_budgets(epochs=1), root)

    def part(**limits):
        surveyed = survey(PARAMS, root, [], replace(unlimited, **limits))
        return [
            (each.config.snapshot.fraction, surveyed.needs[each.name].disk_bytes)
            for each in surveyed.space.candidates
            if each.family == "snapshot_part"
        ]

    assert part() == []
    disk = whole - 0.6 * values + 1
    parts = part(disk_bytes=disk)
    assert len(parts) == 6, "in all its forms"
    assert all(each == (0.4, pytest.approx(disk - 1)) for each in parts)
    assert part(disk_bytes=whole - values) == []


@pytest.mark.parametrize(
    ("disk", "memory", "fitting"),
    [(1100, 800, 1.0), (400, 800, 0.3), (50, 800, 0.0), (1100, 400, 0.5), (1100, -5, 0.0)],
)
def test_a_part_fits_that_leaves_neither_disk_nor_memory_short(disk, memory, fitting):
    sizes = SnapshotBytes(least=100, most=1100, train=800)
    assert sizes.find_fitting(disk, memory) == fitting
    assert sizes.at(fitting) <= max(disk, sizes.least)


@pytest.mark.slow
def test_what_a_part_needs_follows_from_what_is_stored_and_its_examples_are_proven(
    root, layout, tmp_path
):
    part = {"read": "snapshot", "shuffle": {"kind": "global"}, "snapshot": {"fraction": 0.5}}
    pipelines = {"naive": {"read": "shards"}, "part": part}
    halved = check({**SMALL, "batch_size": 16, "pipelines": pipelines})
    written = take_snapshot(halved, project_in(tmp_path, layout, snapshot=False))
    surveyed = survey(halved, tmp_path, [], find_limits(read_budgets(epochs=1), tmp_path))
    stored = sum(map(written.bytes, written.splits))
    assert surveyed.needs["part"].disk_bytes == pytest.approx(stored, rel=0.01)
    refused = {each.name: each.reason for each in surveyed.space.refusals}
    assert "50% of the snapshot's rows are stored" in refused["snapshot"]
    part = Entry(params=halved, root=tmp_path, name="part", config=halved.pipelines["part"])
    whole = Entry(params=PARAMS, root=root, name="mine", config=PARAMS.pipelines["optimized"])
    cached = replace(whole, config=PipelineConfig(cache={"where": "memory"}))
    assert prove_equal(part) == prove_equal(whole) == prove_equal(cached)


def test_a_snapshot_with_another_pixel_is_no_proof(layout, tmp_path):
    changed = link_data(layout.root / "data", tmp_path, snapshot=False)
    shutil.copytree(layout.snapshot, changed.snapshot)
    flip_bit(changed.snapshot / "train" / "image.bin", 0)
    stream = Entry(params=PARAMS, root=tmp_path, name="stream", config=PipelineConfig())
    with pytest.raises(UnequalConfigurations, match="the train split has other examples"):
        prove_equal(stream)


def test_a_contestant_keeps_the_first_shards_alone(root, monkeypatch):
    data = open_inputs(PARAMS, Layout(root))
    whole = data.shards.for_split("train")
    assert sample_shards(data).shards.for_split("train") == whole, "all of a small set"
    monkeypatch.setattr("throughline.race.sample.SAMPLE_BYTES", whole[0].bytes)
    sampled = sample_shards(data)
    assert sampled.shards.for_split("train") == whole[:1]
    assert sampled.shards.for_split("test") == data.shards.for_split("test")
    surveyed = survey(PARAMS, root, [], find_limits(read_budgets(epochs=1), root))
    share = whole[0].records / sum(map(data.shards.examples, data.shards.splits))
    assert surveyed.sampled_share == pytest.approx(share)
    entry = Entry(params=PARAMS, root=root, name="arrays", config=PipelineConfig(read="arrays"))
    assert Training(entry)._pipeline.data.shards.for_split("train") == whole[:1]


def test_a_sample_has_each_class_that_is_drawn(root, monkeypatch):
    data = open_inputs(PARAMS, Layout(root))
    monkeypatch.setattr("throughline.race.sample.SAMPLE_BYTES", 1)
    labels, whole = np.array(data.memmap("train", "label")), data.shards.for_split("train")
    labels[:] = 0
    labels[whole[0].examples + 1] = 1  # in the second shard
    monkeypatch.setattr(PreparedData, "memmap", lambda *_: labels)
    first, second = data.shards.classes[:2]

    def count(*drawn: str) -> int:
        weights = {name: float(name in drawn) for name in data.shards.classes}
        return len(sample_shards(data, weights).shards.for_split("train"))

    assert len(sample_shards(data).shards.for_split("train")) == count(first) == 1
    assert count(first, second) == 2
