"""Fixtures that several folders of tests use; tests/support/README.md says which is which.

Slow libraries are imported within them: the process that deals out the tests needs none.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import throughline  # noqa: F401 - sets the environment before TensorFlow is imported
from flows.servers.services import HOST, reserved_port
from tests.support.project import commit_all, copy_project, find_changes, make_project, run
from tests.support.shared_servers import prefect_template, shared_libraries, shared_prefect
from tests.support.skips import need
from tests.support.small_data import SPLIT, picture, prepared
from tests.support.stack import ENDED, Stack, measuring_folders, running_stack
from throughline.settings import DataSettings
from throughline.shared.layout import STORE_HOME


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory) -> Path:
    """60 JPEG photos of variable size in three classes, one of them nested."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(60):
        label = ("cat", "dog", "bird/owl")[number % 3]
        path = root / label / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, size=(30 + number % 7, 24 + number % 5)).save(path, quality=92)
    return root


@pytest.fixture(scope="session")
def array_file(tmp_path_factory) -> Path:
    """200 gray images of 12×10 in four classes."""
    draw = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("arrays") / "data.npz"
    np.savez(path, x=draw.integers(0, 256, (200, 12, 10), np.uint8), y=np.arange(200) % 4)
    return path


@pytest.fixture(scope="session")
def array_settings(array_file) -> DataSettings:
    return DataSettings(source="arrays", path=str(array_file), split=SPLIT)


@pytest.fixture(scope="session")
def photos(photo_folder, tmp_path_factory) -> Path:
    """A folder with manifest/ and shards/ of the photos."""
    settings = DataSettings(source="image_folder", path=str(photo_folder), split=SPLIT)
    return prepared(settings, tmp_path_factory.mktemp("photos-data"))


@pytest.fixture(scope="session")
def arrays(array_settings, tmp_path_factory) -> Path:
    """A folder with manifest/ and shards/ of the arrays."""
    return prepared(array_settings, tmp_path_factory.mktemp("arrays-data"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """A folder of this run of the tests, the same for each of its processes."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def finished(shared, array_file) -> Iterator[tuple[Path, str]]:
    """A project to look at after its first `dvc repro`, and what that printed."""
    folder, output = shared / "finished" / "project", shared / "finished" / "output.txt"
    with FileLock(shared / "finished.lock"):
        if not output.exists():
            make_project(folder, array_file)
            printed = run(folder, "dvc", "repro")
            output.write_text(printed)
    with find_changes(folder):
        yield folder, output.read_text()


@pytest.fixture
def first(finished, tmp_path) -> tuple[Path, str]:
    """A copy of the finished project for one test, and what its `dvc repro` printed."""
    return copy_project(finished[0], tmp_path / "first" / "project"), finished[1]


@pytest.fixture(scope="session", autouse=True)
def _shared_by_tests(shared, tmp_path_factory) -> Iterator[None]:
    prefect_template.folder = shared
    shared_libraries.folder = tmp_path_factory.mktemp("libraries")
    shared_prefect.folder = tmp_path_factory.mktemp("prefect")
    yield
    shared_libraries.close()
    shared_prefect.close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory, finished) -> Iterator[Stack]:
    """A running `make ui` of a project whose results are up to date and committed."""
    project = copy_project(finished[0], tmp_path_factory.mktemp("ui") / "project")
    with running_stack(commit_all(project)) as running:
        yield running


@pytest.fixture(scope="session")
def trained_at_once(stack) -> tuple[list[str], int]:
    """Both trainings with changes, started together, and the most that were measured at a time."""
    changes = {"epochs": 1, "overrides": ["train.learning_rate=0.02"]}
    names = ("naive", "optimized")
    runs = [stack.start("training", pipeline=name, changes=changes) for name in names]
    most = 0
    while any(stack.state(flow_run)["state_type"] not in ENDED for flow_run in runs):
        most = max(most, len(measuring_folders(stack.project)))
        time.sleep(0.5)
    for flow_run in runs:
        stack.completed(flow_run)
    return runs, most


@pytest.fixture(scope="session")
def trained(trained_at_once) -> str:
    """The training of `naive` among them."""
    return trained_at_once[0][0]


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Files need not reach the disk: no test cuts the power, and every flush takes milliseconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    need("mount")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    yield place
    # The last iterator may still hold its file.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def mlflow_store(shared, tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder of a test with a store of MLflow, which is a copy: migrations take seconds."""
    import mlflow

    template = shared / "mlflow.db"
    with FileLock(shared / "mlflow.lock"):
        if not template.exists():
            mlflow.set_tracking_uri(f"sqlite:///{shared / 'migrated.db'}")
            mlflow.search_experiments()
            shutil.copy(shared / "migrated.db", template)
    shutil.copy(template, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv(STORE_HOME, str(tmp_path))
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    yield tmp_path
    mlflow.set_tracking_uri(None)


@pytest.fixture
def absent_server() -> Iterator[str]:
    """An address of this machine at which nobody answers."""
    with reserved_port() as port:
        yield f"http://{HOST}:{port}"


@pytest.fixture(autouse=True)
def _op_determinism_ends_with_its_test() -> Iterator[None]:
    """With it, which trainings turn on for their process, tf.data works ahead of nobody."""
    yield
    if "tensorflow" in sys.modules:
        from tensorflow.python.framework import config

        config.disable_op_determinism()


@pytest.fixture(scope="session")
def layout(arrays):
    """The layout of a project of the arrays with their snapshot, for small trainings."""
    from tests.support.prepared import take_snapshot
    from tests.support.project import SMALL
    from throughline.config.params import check
    from throughline.shared.layout import Layout

    root = arrays.parent / "resume"
    root.mkdir(exist_ok=True)
    (root / "data").symlink_to(arrays)
    take_snapshot(check(SMALL), Layout(root))
    return Layout(root)


@pytest.fixture(scope="session")
def stored(arrays, photos):
    """Both datasets with their snapshots, each written when it is asked for."""
    from tests.support.small_pipelines import SnapshotsOf

    return SnapshotsOf({"arrays": arrays, "photos": photos})


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Address of a tf.data service with two workers."""
    from throughline.pipelines.service import run_local_service

    with run_local_service(2) as address:
        yield address


@pytest.fixture(scope="session")
def photo_model(photos, photo_folder, tmp_path_factory):
    """Parameters, layout and model of photos of variable size, cropped to one."""
    from tests.support.predictions import photo_params, save_untrained
    from tests.support.prepared import link_data, take_snapshot

    params = photo_params(photo_folder)
    project = link_data(photos, tmp_path_factory.mktemp("photo-model"), snapshot=False)
    take_snapshot(params, project)
    return params, project, save_untrained(params, project)
