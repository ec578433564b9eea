"""A project whose source and snapshot are in an object store: DVC runs it alone, and results are
those of one that has them in files.
"""

from __future__ import annotations

import json
import sys

import pytest

from tasks.upload import upload
from tests.support.project import SMALL, make_project, run, write_params
from throughline.assembly.inputs import open_inputs
from throughline.config.params import load_params
from throughline.data.columns.index import column_path
from throughline.shared.layout import Layout


def read_results(folder):
    """What does not depend on how long things took: digests of examples, and losses."""
    run_folder = folder / "runs" / "optimized"
    history = (run_folder / "history.csv").read_text().splitlines()
    column = history[0].split(",").index("train_loss")
    digests = json.loads((run_folder / "input.json").read_text())["examples_digests"]
    return digests, [line.split(",")[column] for line in history]


def read_damaged_region(folder):
    """What a host has fetched of some rows is compared with its digests, too."""
    data = open_inputs(load_params(folder / "params.yaml"), Layout(folder)).for_rows((4, 9))
    data.memmap("train", "image")
    path = column_path(data.columns_folder, "train", "image")
    content = path.read_bytes()
    path.unlink()  # it may be a link to the whole
    path.write_bytes(b"?" * len(content))
    said = run(folder, sys.executable, "-m", "tasks.verify", code=2)
    assert "rows-4-9/train/image.bin does not match its digest" in said
    path.unlink()


@pytest.mark.slow
def test_dvc_trains_from_a_bucket_what_it_trains_from_files(
    finished, array_file, bucket_url, object_store, tmp_path
):
    """Workers of a Dask cluster put the columns there."""
    upload(array_file.parent, f"{bucket_url}/raw")
    in_files = {**SMALL, "data": {**SMALL["data"], "path": f"{bucket_url}/raw/data.npz"}}
    stored = {**in_files, "storage": {"url": f"{bucket_url}/stored"}, "engine": {"workers": 1}}
    folder = make_project(tmp_path / "project", array_file, stored)
    run(folder, "dvc", "repro", "train@optimized")
    assert not [*(folder / "data" / "snapshot").rglob("*.bin")]
    assert not [*(folder / "data" / "shards").glob("*.tfrecord")]
    assert [*(folder / ".throughline" / "cache").rglob("image.bin")]
    said = run(folder, sys.executable, "-m", "tasks.storage", "verify")
    assert "all digests match" in said
    secret = object_store["AWS_SECRET_ACCESS_KEY"].encode()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if secret in path.read_bytes()]
    read_damaged_region(folder)
    assert read_results(folder) == read_results(finished[0])
    for name in ("snapshot", "shards"):
        index, expected = (
            (root / "data" / name / "index.json").read_bytes() for root in (folder, finished[0])
        )
        assert index == expected
    write_params(folder, in_files)
    assert "up to date" in run(folder, "dvc", "status", "snapshot"), "where it is reruns nothing"
