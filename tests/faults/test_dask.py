"""Stages on a Dask cluster: the same bytes as with threads, and nothing is lost when a worker, the
stage or the scheduler is killed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from project import SMALL, environment, make_project, run, write_params

from throughline.training.processes import find_free_ports

pytestmark = pytest.mark.slow

STAGES = ("ingest", "shard", "snapshot")
SHARDS = 12  # of each split
SLOW_OP = """
import time

import tensorflow as tf

from throughline.plan.ops import Op


class Slow(Op):
    name = "slow"
    takes = "example"
    def compute(self, element, draw):
        image = tf.numpy_function(self.wait, [element["image"]], tf.uint8)
        return {**element, "image": tf.ensure_shape(image, element["image"].shape)}

    def wait(self, image):
        time.sleep(0.02)
        return image
"""
PARAMS = {
    **SMALL,
    "data": {"source": "image_folder", "path": "source/photos", "fetch": "none"},
    "shard": {**SMALL["shard"], "min_shards": SHARDS},
    "preprocess": ["decode", {"resize": {"height": 8, "width": 8}}, "own:Slow"],
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Images of two classes, each another noise; some that only a conversion makes usable."""
    folder, noise = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(150):
        path = folder / f"class{number % 2}" / f"{number}.{'webp' if number % 9 == 0 else 'png'}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (20, 24, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def by_threads(photos, tmp_path_factory) -> Path:
    """A project that threads have prepared."""
    folder = make(tmp_path_factory.mktemp("threads") / "project", photos, {})
    prepare(folder)
    return folder


def make(folder: Path, photos: Path, engine: dict) -> Path:
    make_project(folder, next(photos.glob("*/*")), {**PARAMS, "engine": engine})
    (folder / "own.py").write_text(SLOW_OP)
    shutil.copytree(photos, folder / "source" / "photos", copy_function=shutil.copy2)
    return folder


def prepare(folder: Path, *stages: str) -> None:
    for stage in stages or STAGES:
        run(folder, sys.executable, "-m", f"tasks.{stage}")


def read_data(folder: Path) -> dict[str, bytes]:
    """What was prepared, by file, without the path of the project."""
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"")
        for name in ("manifest", "shards", "snapshot")
        for path in (folder / "data" / name).rglob("*")
        if path.is_file()
    }


def start(folder: Path, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a part of a cluster with the program and the environment of a project."""
    command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, "--no-dashboard"]
    with (folder / f"{module}.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=folder, env=environment(folder), stdout=log, stderr=log
        )


@contextmanager
def cluster(folder: Path, *, workers: int) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler, its address, and so many workers, which nothing starts again."""
    (port,) = find_free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    parts = [start(folder, "dask_scheduler", "--host", "127.0.0.1", "--port", str(port))]
    options = (address, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
    parts += [start(folder, "dask_worker", *options) for _ in range(workers)]
    try:
        yield address, parts
    finally:
        for part in parts:
            with suppress(ProcessLookupError):
                part.kill()
            part.wait()


def wait_for(condition, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_notes(folder: Path) -> dict[str, int]:
    """The inodes of the notes on finished shards of a snapshot that is being written."""
    found = {}
    for path in (folder / "data").glob("snapshot.*.partial/.done-*.json"):
        with suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


def begin_snapshot(folder: Path, *, notes: int) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """The snapshot stage, of which so many shards are finished, and their notes."""
    stage = subprocess.Popen(
        [sys.executable, "-m", "tasks.snapshot"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: len(read_notes(folder)) >= notes or stage.poll() is not None)
    found = read_notes(folder)
    assert stage.poll() is None and len(found) < 3 * SHARDS, "it is in the midst of it"
    return stage, found


def set_engine(folder: Path, **engine: object) -> None:
    write_params(folder, {**PARAMS, "engine": engine})


def test_a_worker_of_its_own_writes_what_threads_write(by_threads, photos, tmp_path):
    folder = make(tmp_path / "project", photos, {"workers": 1})
    prepare(folder)
    assert read_data(folder) == read_data(by_threads)


@pytest.fixture
def sharded(by_threads, tmp_path) -> Path:
    """A copy of the project whose snapshot is to be made."""
    folder = shutil.copytree(by_threads, tmp_path / "project", symlinks=True)
    shutil.rmtree(folder / "data" / "snapshot")
    return folder


def read_columns(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_data(folder).items() if "/snapshot/" in name}


def test_a_worker_that_is_killed_loses_what_it_was_at_and_no_more(sharded, by_threads):
    with cluster(sharded, workers=2) as (address, (_, first, _)):
        set_engine(sharded, address=address)
        stage, notes = begin_snapshot(sharded, notes=3)
        first.kill()
        wait_for(lambda: len(read_notes(sharded)) > len(notes) + 3 or stage.poll() is not None)
        later = read_notes(sharded)
        assert {name: later.get(name) for name in notes} == notes or stage.poll() == 0
        assert stage.wait(timeout=120) == 0, stage.stdout and stage.stdout.read()
    assert read_columns(sharded) == read_columns(by_threads)


def test_a_stage_that_is_killed_goes_on_with_the_rest(sharded, by_threads):
    with cluster(sharded, workers=2) as (address, _):
        set_engine(sharded, address=address)
        stage, _ = begin_snapshot(sharded, notes=3)
        stage.kill()
        stage.wait()
        time.sleep(1)  # what its workers were at may end
        notes = read_notes(sharded)
        stage, later = begin_snapshot(sharded, notes=len(notes) + 1)
        assert {name: later[name] for name in notes} == notes
        assert stage.wait(timeout=120) == 0
    assert read_columns(sharded) == read_columns(by_threads)


def test_a_scheduler_that_is_killed_is_an_error_and_the_rest_is_done_by_threads(
    sharded, by_threads
):
    with cluster(sharded, workers=1) as (address, (scheduler, *_)):
        set_engine(sharded, address=address)
        stage, _ = begin_snapshot(sharded, notes=3)
        scheduler.kill()
        output, _ = stage.communicate(timeout=60)
        assert stage.returncode == 2, output
        assert f"the Dask scheduler at {address} is gone" in output
        assert "Traceback" not in output, output
    set_engine(sharded)
    prepare(sharded, "snapshot")
    assert read_columns(sharded) == read_columns(by_threads)


def test_a_worker_of_another_program_is_refused(sharded, tmp_path):
    other = shutil.copytree(sharded, tmp_path / "other", symlinks=True)
    changed = other / "throughline" / "kernels" / "kernels.py"
    changed.write_text(f"{changed.read_text()}\nOTHER = 1\n")
    with cluster(sharded, workers=0) as (address, parts):
        parts.append(start(other, "dask_worker", address, "--nthreads", "1", "--no-nanny"))
        set_engine(sharded, address=address)
        said = run(sharded, sys.executable, "-m", "tasks.snapshot", code=2)
    assert "has another program than the stage" in said
    assert "Traceback" not in said
    assert not (sharded / "data" / "snapshot").exists()


def test_several_workers_write_what_threads_write_and_run_no_own_op_that_has_changed(
    sharded, by_threads
):
    shutil.rmtree(sharded / "data")
    with cluster(sharded, workers=2) as (address, _):
        set_engine(sharded, address=address)
        prepare(sharded)
        assert read_data(sharded) == read_data(by_threads)
        own = sharded / "own.py"
        own.write_text(own.read_text().replace("return image", "return 255 - image"))
        said = run(sharded, sys.executable, "-m", "tasks.snapshot", code=2)
    assert "has started before own was changed" in said
    assert read_columns(sharded) == read_columns(by_threads)
