"""Stages on a Dask cluster write what threads write, whatever of it is killed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infra.local.clusters import ALLOWED_FAILURES
from tests.support.project import SMALL, environment, make_project, run, start, write_params
from tests.support.shared_servers import shared_libraries
from tests.support.small_data import read_files
from tests.support.stack import wait_for

pytestmark = pytest.mark.slow

SNAPSHOT = (sys.executable, "-m", "tasks.snapshot")
DATA = {"manifest": "ingest", "shards": "shard", "snapshot": "snapshot"}  # by its stage
SHARDS = 12  # of each split
# Where a file `hold` says a number, work on a snapshot stops once so many of its shards are done,
# each worker amid the shard that it is at; a file `waits-…` says that it has stopped.
HELD_OP = """
import os
import time
from pathlib import Path

import tensorflow as tf

from throughline.plan.ops import Op


class Held(Op):
    name = "held"
    takes = "example"
    def compute(self, element, draw):
        image = tf.numpy_function(self.wait, [element["image"]], tf.uint8)
        return {**element, "image": tf.ensure_shape(image, element["image"].shape)}

    def wait(self, image):
        while is_held():
            Path(f"waits-{os.getpid()}").touch()
            time.sleep(0.02)
        return image


def is_held():
    hold = Path("hold")
    done = len(list(Path("data").glob("snapshot.*.partial/.done-*.json")))
    return hold.exists() and done >= int(hold.read_text() or "0")
"""
PARAMS = {
    **SMALL,
    "data": {"source": "image_folder", "path": "source/photos", "fetch": "none"},
    "shard": {**SMALL["shard"], "min_shards": SHARDS},
    "preprocess": ["decode", {"resize": {"height": 8, "width": 8}}, "own:Held"],
}


@pytest.fixture(scope="module")
def by_threads(array_file, tmp_path_factory) -> Path:
    """A project of noise in two classes, some of it usable only after a conversion, and its data,
    which threads have written.
    """
    folder = make_project(tmp_path_factory.mktemp("threads") / "project", array_file, PARAMS)
    (folder / "own.py").write_text(HELD_OP)
    noise = np.random.default_rng(0).integers(0, 256, (150, 20, 24, 3), np.uint8)
    for number, image in enumerate(noise):
        name = f"class{number % 2}/{number}.{'webp' if number % 9 == 0 else 'png'}"
        path = folder / "source" / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    prepare(folder, *DATA.values())
    return folder


def prepare(folder: Path, *stages: str) -> None:
    for stage in stages:
        run(folder, sys.executable, "-m", f"tasks.{stage}")


def read_data(folder: Path, *parts: str) -> dict[str, bytes]:
    """What was prepared, but for the path of the project."""
    found = {name: read_files(folder / "data" / name) for name in parts}
    root = str(folder).encode()
    return {
        f"{part}/{name}": content.replace(root, b"")
        for part, files in found.items()
        for name, content in files.items()
    }


class Cluster:
    """A scheduler and workers in a project's folder; nothing starts one again but `have`."""

    def __init__(self, folder: Path) -> None:
        self.folder, file = folder, folder / "scheduler.json"
        self.scheduler = self._start("dask_scheduler", "--port", "0", "--scheduler-file", str(file))
        self.workers: list[subprocess.Popen[bytes]] = []
        wait_for(lambda: file.exists() and file.read_text().endswith("\n}"))
        self.address = json.loads(file.read_text())["address"]

    def have(self, workers: int) -> None:
        """Start workers until there are so many that live."""
        options = (self.address, "--nthreads", "1", "--no-nanny")
        while len(self.workers) < workers:
            self.workers.append(self._start("dask_worker", *options))

    def hold(self, *, notes: int) -> None:
        """Let work on a snapshot stop once it has so many notes on finished shards."""
        (self.folder / "hold").write_text(str(notes))

    def wait_until_held(self) -> dict[str, int]:
        """Wait until there are these notes, and all workers have stopped; returns the notes."""
        wanted = int((self.folder / "hold").read_text())
        for old in self.folder.glob("waits-*"):
            old.unlink(missing_ok=True)
        wait_for(lambda: len(read_notes(self.folder)) >= wanted)
        wait_for(lambda: all((self.folder / f"waits-{one.pid}").exists() for one in self.workers))
        return read_notes(self.folder)

    def go_on(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        local = ("--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0")
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, *local]
        own = environment(self.folder) | ALLOWED_FAILURES
        with (self.folder / f"{module}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=own, stdout=log, stderr=log)

    def close(self) -> None:
        for part in (self.scheduler, *self.workers):
            part.kill()
            part.wait()


def read_notes(folder: Path) -> dict[str, int]:
    """The inodes of the notes on finished shards of a snapshot that is being written."""
    found = {}
    for path in (folder / "data").glob("snapshot.*.partial/.done-*.json"):
        with suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


@pytest.fixture(scope="module")
def cluster(by_threads, tmp_path_factory) -> Iterator[Cluster]:
    """Of a copy of that project; its workers import TensorFlow once for all tests."""
    folder = tmp_path_factory.mktemp("cluster") / "project"
    with closing(Cluster(shutil.copytree(by_threads, folder, symlinks=True))) as started:
        write_params(folder, {**PARAMS, "engine": {"address": started.address}})
        yield started


@pytest.fixture
def folder(cluster) -> Path:
    """The project of the cluster; its snapshot is to be made."""
    shutil.rmtree(cluster.folder / "data" / "snapshot", ignore_errors=True)
    cluster.have(2)
    cluster.hold(notes=3)
    return cluster.folder


@pytest.mark.core
def test_several_workers_write_what_threads_write(cluster, folder, by_threads):
    cluster.go_on()
    shutil.rmtree(folder / "data")
    prepare(folder, *DATA.values())
    assert read_data(folder, *DATA) == read_data(by_threads, *DATA)


def test_what_a_killed_stage_and_a_killed_worker_have_finished_is_not_done_again(
    cluster, folder, by_threads
):
    stage = start(folder, *SNAPSHOT)
    begun = cluster.wait_until_held()
    stage.kill()
    stage.wait()
    cluster.hold(notes=len(begun) + 2)  # with what its two workers are at
    wait_for(lambda: len(read_notes(folder)) >= len(begun) + 2)
    begun = read_notes(folder)
    cluster.hold(notes=len(begun) + 1)
    again = start(folder, *SNAPSHOT, shared=shared_libraries.environment())
    more = cluster.wait_until_held()
    assert begun.items() <= more.items()
    cluster.workers[0].kill()
    cluster.workers.pop(0).wait()
    cluster.hold(notes=len(more) + 3)
    assert more.items() <= cluster.wait_until_held().items()
    cluster.go_on()
    assert again.wait() == 0, again.stdout.read()
    assert read_data(folder, "snapshot") == read_data(by_threads, "snapshot")


def test_a_scheduler_that_is_killed_is_an_error_and_the_rest_is_done_by_threads(
    cluster, folder, by_threads
):
    stage = start(folder, *SNAPSHOT, shared=shared_libraries.environment())
    cluster.wait_until_held()
    cluster.scheduler.kill()
    output, _ = stage.communicate()
    assert stage.returncode == 2, output
    assert f"the Dask scheduler ({cluster.address}) is gone" in output
    assert "Traceback" not in output, output
    cluster.go_on()
    write_params(folder, PARAMS)
    prepare(folder, "snapshot")
    assert read_data(folder, "snapshot") == read_data(by_threads, "snapshot")
