"""Contestants are processes of their own that stand still when it is not their turn, and end with
the search, however that ends.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.prepared import prepare
from tests.support.project import SMALL
from tests.support.small_data import save_photos
from tests.support.stack import wait_for
from throughline.config.params import Params, check
from throughline.race.contestant import TRAINING, Contestant, ContestantLost, do_once
from throughline.race.jobs import Entry
from throughline.race.training import Training
from throughline.settings import PipelineConfig
from throughline.shared.layout import Layout
from throughline.shared.limits import own_memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARAMS = check(SMALL)


def entry_of(layout: Layout, params: Params = PARAMS, **config: Any) -> Entry:
    """A contestant that reads shards, unless it is said otherwise."""
    return Entry(params=params, root=layout.root, name="own", config=PipelineConfig(**config))


def test_a_contestant_trains_in_turns_and_stands_still_between_them(layout, tmp_path):
    with Contestant(TRAINING, [(entry_of(layout),)], log=tmp_path / "log") as one:
        opened = one.wait_until_open()
        assert opened.first_batch_s > 0 and not opened.has_cache
        turn = one.take_turn()
        assert turn.examples > 0
        process = psutil.Process(one.process)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        assert one.memory_bytes() > 50 * 2**20
    assert not process.is_running(), "one that is stopped ends, too"


class Napping:
    """A job that forgets in its turns how long they took."""

    opened, turns = None, 0

    def train(self, seconds: float) -> float:
        self.turns += 1
        time.sleep(seconds)
        return self.turns


def test_a_turn_is_charged_from_waking_to_freezing_after_one_that_does_not_count(tmp_path):
    with Contestant(f"{__name__}:Napping", [()], log=tmp_path / "log") as one:
        one.wait_until_open()
        turns = [one.take_turn(turn_s=0.05) for _ in range(2)]
    assert [turn.examples for turn in turns] == [2, 3]
    assert all(turn.seconds >= 0.05 for turn in turns)


class Meeting:
    """A job whose turns end when as many processes are in the same turn."""

    opened, turns = None, 0

    def __init__(self, folder: Path, index: int, count: int) -> None:
        self.folder, self.index, self.count = folder, index, count

    def train(self, seconds: float) -> float:
        self.turns += 1
        (self.folder / f"{self.turns} {self.index}").touch()
        wait_for(lambda: len([*self.folder.glob(f"{self.turns} *")]) == self.count, 60)
        return self.turns


def test_processes_that_train_together_are_woken_and_charged_as_one(tmp_path):
    both = [(tmp_path, index, 2) for index in range(2)]
    with Contestant(f"{__name__}:Meeting", both, log=tmp_path / "log") as one:
        one.wait_until_open()
        assert one.take_turn().examples == 2 + 2


def test_the_last_batch_of_an_epoch_counts_as_what_it_is(layout):
    one = Training(entry_of(layout, replace(PARAMS, batch_size=100)))
    examples, steps = one._pipeline.examples, one._pipeline.steps_per_epoch
    assert examples % 100
    assert one._sample.mean_batch == examples / steps < 100


@pytest.mark.parametrize("where", ["memory", "disk", "save_load"])
def test_a_cache_is_raced_over_images_of_one_size_that_nothing_resizes(where, tmp_path):
    source = save_photos(tmp_path / "source", 30, "cat", "dog", suffix="png")
    data = {**SMALL["data"], "source": "image_folder", "path": str(source)}
    params = check({**SMALL, "data": data, "batch_size": 4})
    one = Training(entry_of(prepare(params, Layout(tmp_path)), params, cache={"where": where}))
    assert one.opened.has_cache and not one.opened.loads
    assert one.fill() > 0


def test_the_workers_of_a_service_are_memory_and_stand_still_and_a_kill_is_said(layout, tmp_path):
    entry = entry_of(layout, service={"workers": 1})
    with Contestant(TRAINING, [(entry,)], log=tmp_path / "log") as one:
        one.wait_until_open()
        assert one.memory_bytes() > own_memory(Path(f"/proc/{one.process}")) + 50 * 2**20
        one.stop()
        workers = psutil.Process(one.process).children(recursive=True)
        wait_for(lambda: {each.status() for each in workers} == {psutil.STATUS_STOPPED})
        os.kill(one.process, signal.SIGKILL)
        with pytest.raises(ContestantLost, match="killed by SIGKILL, perhaps for lack of memory"):
            one.take_turn()
    assert not psutil.wait_procs(workers, timeout=60)[1], "they end with it, though stopped"


def test_what_fails_in_a_contestant_is_said_in_a_line_and_kept_in_its_log(layout, tmp_path):
    entry = entry_of(Layout(tmp_path / "empty"))
    for log in (tmp_path / "log", Path("/dev/full")):  # a disk that has no room for the reason
        with pytest.raises(ContestantLost, match=r"MissingInput: .*dvc repro shard"):
            do_once(TRAINING, entry, log=log)
    assert "MissingInput" in (tmp_path / "log").read_text()


def test_a_bug_in_a_contestant_is_the_searchs_own_error_and_decides_nothing(layout, tmp_path):
    with pytest.raises(ContestantLost, match=r"a bug of .*\): TypeError: .*log") as it:
        do_once(TRAINING, entry_of(layout), "one too many", log=tmp_path / "log")
    assert it.value.transient
