"""Stages on a Dask cluster: the same bytes as with threads, and nothing is lost when a worker, the
stage or the scheduler is killed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infra.local.clusters import ALLOWED_FAILURES
from tasks.upload import upload
from tests.support.object_stores import Proxy
from tests.support.project import SMALL, environment, make_project, run, start, write_params
from tests.support.shared_servers import shared_libraries
from throughline.data.file_inspection import FILES_AT_ONCE
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
    folder = tmp_path_factory.mktemp("threads") / "project"
    make_project(folder, next(photos.glob("*/*")), PARAMS)
    (folder / "own.py").write_text(SLOW_OP)
    shutil.copytree(photos, folder / "source" / "photos", copy_function=shutil.copy2)
    prepare(folder)
    return folder


def prepare(folder: Path, *stages: str) -> None:
    for stage in stages or STAGES:
        run(folder, sys.executable, "-m", f"tasks.{stage}")


def read_data(folder: Path, *parts: str) -> dict[str, bytes]:
    """What was prepared, or some parts of it, by file, without the path of the project."""
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(str(folder).encode(), b"")
        for name in parts or ("manifest", "shards", "snapshot")
        for path in (folder / "data" / name).rglob("*")
        if path.is_file()
    }


class Cluster:
    """A scheduler with its address, and workers, in the folder of a project, with its program and
    its environment; nothing starts one again but `have`.
    """

    def __init__(self, folder: Path) -> None:
        (port,) = find_free_ports(1)
        self.folder, self.address = folder, f"tcp://127.0.0.1:{port}"
        self.scheduler = self._start("dask_scheduler", "--host", "127.0.0.1", "--port", str(port))
        self.workers: list[subprocess.Popen[bytes]] = []

    def have(self, workers: int) -> None:
        """Start workers until there are so many that live."""
        self.workers = [one for one in self.workers if one.poll() is None]
        options = (self.address, "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
        while len(self.workers) < workers:
            self.workers.append(self._start("dask_worker", *options))

    def replace_worker(self) -> None:
        """Kill the one worker; by then another has been started."""
        killed = self.workers.pop()
        self.have(1)
        killed.kill()
        killed.wait()

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        no_page = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
        command = [sys.executable, "-m", f"distributed.cli.{module}", *arguments, *no_page]
        with (self.folder / f"{module}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**environment(self.folder), **ALLOWED_FAILURES},
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        """End all that is left of it."""
        for part in (self.scheduler, *self.workers):
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


def begin_snapshot(
    folder: Path, *, notes: int, shared: Mapping[str, str]
) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """The snapshot stage, of which so many shards are finished, and their notes."""
    stage = start(folder, sys.executable, "-m", "tasks.snapshot", shared=shared)
    wait_for(lambda: len(read_notes(folder)) >= notes or stage.poll() is not None)
    found = read_notes(folder)
    assert stage.poll() is None and len(found) < 3 * SHARDS, "it is in the midst of it"
    return stage, found


@pytest.fixture(scope="module")
def cluster(by_threads, tmp_path_factory) -> Iterator[Cluster]:
    """Of a copy of that project; its workers import TensorFlow once for all tests."""
    folder = tmp_path_factory.mktemp("cluster") / "project"
    with closing(Cluster(shutil.copytree(by_threads, folder, symlinks=True))) as started:
        write_params(folder, {**PARAMS, "engine": {"address": started.address}})
        yield started


@pytest.fixture
def sharded(cluster, by_threads) -> Path:
    """The project of the cluster; its snapshot is to be made."""
    shutil.rmtree(cluster.folder / "data")
    shutil.copytree(by_threads / "data", cluster.folder / "data")
    shutil.rmtree(cluster.folder / "data" / "snapshot")
    return cluster.folder


def read_columns(folder: Path) -> dict[str, bytes]:
    return read_data(folder, "snapshot")


def test_several_workers_write_what_threads_write(cluster, sharded, by_threads):
    cluster.have(2)
    shutil.rmtree(sharded / "data")
    prepare(sharded)
    assert read_data(sharded) == read_data(by_threads)


def test_a_stage_that_is_killed_goes_on_with_the_rest(cluster, sharded, by_threads):
    cluster.have(2)
    stage, _ = begin_snapshot(sharded, notes=3, shared={})
    stage.kill()
    stage.wait()
    time.sleep(1)  # what its workers were at may end
    notes = read_notes(sharded)
    stage, later = begin_snapshot(
        sharded, notes=len(notes) + 1, shared=shared_libraries.environment()
    )
    assert {name: later[name] for name in notes} == notes
    assert stage.wait(timeout=120) == 0
    assert read_columns(sharded) == read_columns(by_threads)


def test_a_worker_that_is_killed_loses_what_it_was_at_and_no_more(cluster, sharded, by_threads):
    cluster.have(2)
    stage, notes = begin_snapshot(sharded, notes=3, shared=shared_libraries.environment())
    cluster.workers[0].kill()
    wait_for(lambda: len(read_notes(sharded)) > len(notes) + 3 or stage.poll() is not None)
    later = read_notes(sharded)
    assert {name: later.get(name) for name in notes} == notes or stage.poll() == 0
    assert stage.wait(timeout=120) == 0, stage.stdout and stage.stdout.read()
    assert read_columns(sharded) == read_columns(by_threads)


@pytest.fixture
def in_bucket(by_threads, photos, bucket_url, proxy, tmp_path) -> Iterator[Cluster]:
    """A cluster of one worker, of another copy, whose images are to be read from a bucket."""
    folder = shutil.copytree(by_threads, tmp_path / "project", symlinks=True)
    shutil.rmtree(folder / "data")
    upload(photos, bucket_url)
    with closing(Cluster(folder)) as started:
        data = {**PARAMS["data"], "path": bucket_url}
        write_params(folder, {**PARAMS, "data": data, "engine": {"address": started.address}})
        started.have(1)
        yield started


def find_shards(folder: Path, name: str) -> dict[str, int]:
    """The inodes of the shards in a folder of data/."""
    return {one.name: one.stat().st_ino for one in (folder / "data").glob(f"{name}/*.tfrecord")}


def kill_who_reads(
    cluster: Cluster, proxy: Proxy, is_due: Callable[[list[str]], bool]
) -> tuple[list[str], list[dict[str, int]]]:
    """Have the worker killed while it waits for an image, as often as `is_due` says so by those
    that have been asked for; returns these, and for each kill the shards that were finished.
    """
    asked, finished, turn = list[str](), list[dict[str, int]](), threading.Lock()

    def look(method: str, path: str) -> None:
        if method == "GET" and path.endswith((".png", ".webp")):
            with turn:
                asked.append(path)
                if is_due(asked):
                    finished.append(find_shards(cluster.folder, "shards.*.partial"))
                    cluster.replace_worker()

    proxy.fault = look
    return asked, finished


def test_a_worker_that_is_killed_amid_files_or_a_shard_loses_these_and_no_more(
    in_bucket, by_threads, proxy
):
    folder = in_bucket.folder
    asked, kills = kill_who_reads(in_bucket, proxy, lambda asked: len(asked) == 140)
    prepare(folder, "ingest")
    assert len(kills) == 1, "in the third batch of 150 files, when the first has been taken"
    assert not {*asked[:FILES_AT_ONCE]} & {*asked[FILES_AT_ONCE:]}, "nobody reads that again"
    _, kills = kill_who_reads(in_bucket, proxy, lambda asked: len(asked) == 75)
    prepare(folder, "shard")
    (finished,) = kills
    assert finished and finished.items() <= find_shards(folder, "shards").items()
    assert read_data(folder, "shards") == read_data(by_threads, "shards")


def test_an_image_that_ends_three_workers_of_a_cluster_is_named_with_its_batch(in_bucket, proxy):
    """Whoever has started the scheduler."""
    _, kills = kill_who_reads(in_bucket, proxy, lambda asked: asked[-1].endswith("/class0/10.png"))
    said = run(in_bucket.folder, sys.executable, "-m", "tasks.ingest", code=2)
    assert "engine: class0/0.webp or one of the 63 files after it has ended 3 workers" in said
    assert len(kills) == 3
    assert "Traceback" not in said


def test_an_own_op_that_was_changed_is_not_run_as_it_was(cluster, sharded):
    cluster.have(1)
    prepare(sharded, "snapshot")
    columns, own = read_columns(sharded), sharded / "own.py"
    own.write_text(SLOW_OP.replace("return image", "return 255 - image"))
    said = run(sharded, sys.executable, "-m", "tasks.snapshot", code=2)
    assert "has started before own was changed" in said and "Traceback" not in said
    assert read_columns(sharded) == columns
    own.write_text(SLOW_OP)
    for worker in cluster.workers:  # they have started before that, too
        worker.kill()
        worker.wait()


def test_a_scheduler_that_is_killed_is_an_error_and_the_rest_is_done_by_threads(
    cluster, sharded, by_threads
):
    cluster.have(1)
    stage, _ = begin_snapshot(sharded, notes=3, shared=shared_libraries.environment())
    cluster.scheduler.kill()
    output, _ = stage.communicate(timeout=60)
    assert stage.returncode == 2, output
    assert f"the Dask scheduler at {cluster.address} is gone" in output
    assert "Traceback" not in output, output
    write_params(sharded, PARAMS)
    prepare(sharded, "snapshot")
    assert read_columns(sharded) == read_columns(by_threads)
