"""What a search looks at first: the machine's limits, memory, and the space of plans."""

import math
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.made_up import made_up
from tests.support.prepared import link_data, take_snapshot
from tests.support.project import SMALL, environment, write_params
from tests.support.small_data import flip_bit
from tests.support.stack import wait_for
from throughline.assembly.inputs import open_inputs
from throughline.config.params import check, load_params
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.race.jobs import Entry
from throughline.race.training import Training, sample_shards
from throughline.results.snapshot import SnapshotCost
from throughline.settings import PipelineConfig
from throughline.shared.errors import InvalidBudget, UnequalConfigurations
from throughline.shared.layout import Layout
from throughline.shared.limits import available_memory, own_memory
from throughline.tuning.budgets import (
    Need,
    find_excess,
    find_limits,
    format_bytes,
    format_seconds,
    parse_size,
    parse_time,
    read_budgets,
    refuse_large_snapshot,
)
from throughline.tuning.journal import Journal
from throughline.tuning.question import Question
from throughline.tuning.search import Search
from throughline.tuning.survey import SnapshotBytes, prove_equal, survey, watched

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
    """What a training holds besides its steps takes a training to measure."""
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
        parts = [one for one in surveyed.space.candidates if one.family == "snapshot_part"]
        needs = surveyed.needs
        return [(one.config.snapshot.fraction, needs[one.name].disk_bytes) for one in parts]

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
    with pytest.raises(UnequalConfigurations, match="examples of the train split differ"):
        prove_equal(stream)


@pytest.mark.slow
def test_a_contestant_keeps_the_first_shards_alone(root, monkeypatch):
    data = open_inputs(PARAMS, Layout(root))
    whole = data.shards.for_split("train")
    assert sample_shards(data).shards.for_split("train") == whole, "all of a small set"
    monkeypatch.setattr("throughline.race.training.SAMPLE_BYTES", whole[0].bytes)
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
    monkeypatch.setattr("throughline.race.training.SAMPLE_BYTES", 1)
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


def test_sizes_times_and_allowances_are_read_and_written_as_people_write_them():
    texts = ("8GiB", "1.5 MiB", "2GB", "3kb", "7B")
    assert [*map(parse_size, texts)] == [8 * 2**30, 1.5 * 2**20, 2e9, 3e3, 7]
    assert [*map(parse_time, ("90s", "10min", "1.5h"))] == [90, 600, 5400]
    written = [format_seconds(each) for each in (0.84, 41.2, 720, 12600, math.inf)]
    assert written == ["0.8 s", "41 s", "12 min", "3.5 h", "any time"]
    assert [format_bytes(each * 2**20) for each in (38, 1126)] == ["38 MiB", "1.1 GiB"]
    assert read_budgets(allow=["approximate,unordered"]).allow == ("approximate", "unordered")
    assert read_budgets(allow=["unordered"]).allow == ("unordered",)
    assert read_budgets(allow=None).allow == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ram": "8"}, "--ram: a size needs a number and a unit, such as 500MB or 8GiB; found '8'"),
        ({"disk": "-1GiB"}, "--disk: a size needs a number and a unit"),
        ({"prepare": "10GiB"}, "--prepare: a time needs a number and a unit"),
        ({"time": "59s"}, "--time: a search needs at least 1min"),
        ({"epochs": 0}, "--epochs: expected auto or a whole number from 1; found 0"),
        ({"allow": ["anything"]}, "--allow: input should be 'approximate' or 'unordered'"),
    ],
)
def test_what_is_no_budget_is_named_by_its_option(options, said):
    with pytest.raises(InvalidBudget) as refused:
        read_budgets(**{"epochs": 3, **options})
    assert str(refused.value).startswith(said)


def test_budgets_are_no_more_than_the_machine_has_left():
    limits = find_limits(read_budgets(ram="1MiB", disk="900TiB", epochs=1), Path())
    assert limits.ram_bytes == 2**20
    assert limits.disk_bytes < 900 * 2**40
    assert limits.prepare_s == math.inf
    assert find_limits(read_budgets(epochs=1), Path()).ram_bytes <= 1.1 * available_memory()


def test_what_does_not_fit_or_a_training_would_refuse_to_keep_is_said_with_need_and_allowance():
    limits = find_limits(read_budgets(ram="1MiB", prepare="1s", epochs=1), Path())
    whole = find_limits(read_budgets(epochs=1), Path())
    assert whole.kept_bytes == 0.8 * whole.ram_bytes
    small = Need(ram_bytes=2**19, disk_bytes=0, prepare_s=0)
    large = Need(ram_bytes=2**30, disk_bytes=0, prepare_s=60)
    leaner, cached = (replace(small, kept_bytes=part * limits.kept_bytes) for part in (0.9, 1.1))
    needs = {"small": small, "large": large, "leaner": leaner, "cached": cached}
    found = find_excess(needs, limits)
    assert found.pop("large") == (
        "needs 1.0 GiB of memory (allowed: 1 MiB); needs 60 s of preparation (allowed: 1.0 s)"
    )
    assert found.keys() == {"cached"} and "of memory to keep splits in" in found["cached"]
    with pytest.raises(
        InvalidBudget, match=r"budgets: `large` needs 1\.0 GiB of memory .*preparation"
    ):
        find_excess({"large": large}, limits)


def test_more_of_a_snapshot_than_the_disk_has_room_for_is_refused(layout):
    data = open_inputs(check(SMALL), layout)
    splits, column = data.shards.splits, data.input_column
    whole = sum(map(data.snapshot.bytes, splits))
    values = sum(data.snapshot.splits[one].bytes(column) for one in splits)
    part = f"{whole - 0.6 * values + 1:.0f}B"
    naive = {"naive": {"read": "shards"}}

    def refuse(disk, fraction=1.0, pipelines=naive):
        stored = {"snapshot": {"fraction": fraction}, "pipelines": pipelines}
        refuse_large_snapshot(check({**SMALL, **stored}), layout.root, read_budgets(disk=disk))

    refuse("available")
    refuse(f"{whole}B")
    refuse(part, 0.4)
    with pytest.raises(InvalidBudget, match=r"fraction: 0\.4}` in params\.yaml .* raise --disk"):
        refuse(part)
    both = r"0\.4}` in params\.yaml and pipelines\.optimized stores"
    with pytest.raises(InvalidBudget, match=both):
        refuse(part, pipelines=SMALL["pipelines"])
    with pytest.raises(InvalidBudget, match=r"needs 27 kiB of disk \(allowed: .*\); raise --disk"):
        refuse("1B")


WIDE = {
    **SMALL,
    "batch_size": 4,
    "model": {"name": "mlp", "options": {"width": 8000}},
    "train": {**SMALL["train"], "epochs": 8, "early_stopping": {"patience": 20}},
}


def test_the_most_that_a_block_holds_is_seen(monkeypatch):
    held = [1]
    monkeypatch.setattr("throughline.tuning.survey.own_memory", lambda: held[0])
    with watched() as samples:
        held[0] = 9
        wait_for(lambda: 9 in samples)
        held[0] = 1
    assert (max(samples), samples[-1]) == (9, 1)


@pytest.mark.slow
def test_a_training_takes_no_more_than_its_search_says(first, tmp_path):
    folder, _ = first
    write_params(folder, WIDE)
    params, budgets = load_params(folder / "params.yaml"), read_budgets()
    limits = find_limits(budgets, folder)
    question = Question(params=params, root=folder, budgets=budgets, limits=limits)
    search = Search(question, Journal(tmp_path))
    with search.open_pool() as pool:
        pool.open(["naive"])
    said, most = search.measured_needs["naive"].ram_bytes, 0
    command = [sys.executable, "-m", "tasks.train", "--pipeline", "naive"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder)) as training:
        while training.poll() is None:
            most = max(most, own_memory(Path(f"/proc/{training.pid}")))
            time.sleep(0.02)
    assert training.returncode == 0 and 0 < most < said
