"""Kills at random instants of ingests of a folder that changes between them: the next ingest writes
the bytes of one that reads everything, and what the killed ones have found is not lost.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.small_data import data_settings, picture, read_files
from throughline.data import file_inspection, inspection_cache
from throughline.data.ingest import ingest

pytestmark = [pytest.mark.slow, pytest.mark.integration]

FILES = 400
KILLS = 25


def add(root: Path, number: int, draw: random.Random) -> None:
    """A new photo, or another one in place of an earlier one; some have to be converted."""
    name, mode = ("x.png", "RGBA") if number % 10 == 0 else ("x.jpg", "RGB")
    path = root / ("a", "b")[number % 2] / f"{number:04d}{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(draw.randrange(1 << 30), mode=mode).save(path)


def test_whenever_it_is_killed_the_next_ingest_writes_what_a_fresh_one_does(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(inspection_cache, "SETTLED_NS", 50_000_000)
    monkeypatch.setattr(file_inspection, "FILES_AT_ONCE", 4)  # kept more often than it is killed
    draw = random.Random(20)
    root, out, kept = tmp_path / "in", tmp_path / "manifest", tmp_path / "kept"
    settings = data_settings(root)
    for number in range(FILES):
        add(root, number, draw)

    def run() -> None:
        ingest(settings, out, inspections=kept)

    started_at = time.monotonic()
    ingest(settings, out)
    longest = time.monotonic() - started_at
    killed = 0
    for _ in range(KILLS):
        for _ in range(draw.randrange(8)):
            add(root, draw.randrange(FILES), draw)
        time.sleep(0.06)
        process = os.fork()
        if process == 0:
            run()
            os._exit(0)
        time.sleep(draw.uniform(0, longest))
        os.kill(process, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) < 0
    assert killed > KILLS // 3, "most of them were over"
    capfd.readouterr()
    run()
    assert "were not read again" in capfd.readouterr().out, "the killed ones have kept nothing"
    incremental = read_files(out)
    ingest(settings, out)
    assert read_files(out) == incremental
    assert not [*out.parent.glob("manifest.*.partial")]
