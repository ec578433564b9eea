"""`python -m infra.local store`: a command with an S3 store in its environment, as `make demo
STORE=s3` uses it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import psutil
import pytest
from project import ROOT, SMALL, environment, make_project, run

pytestmark = pytest.mark.slow
STORE = (sys.executable, "-m", "infra.local", "store", "--")


def read_digests(folder):
    return json.loads((folder / "runs" / "optimized" / "input.json").read_text())[
        "examples_digests"
    ]


def test_data_prepared_into_the_store_are_those_of_files_and_stay_there(
    finished, array_file, tmp_path
):
    stored = {
        **SMALL,
        "data": {**SMALL["data"], "path": "s3://data/raw/data.npz"},
        "storage": {"url": "s3://data/prepared"},
    }
    folder = make_project(tmp_path / "project", array_file, stored)
    upload = f"{sys.executable} -m tasks.upload source s3://data/raw"
    run(folder, *STORE, "sh", "-ec", f"{upload}; exec dvc repro build@optimized")
    assert read_digests(folder) == read_digests(finished[0])
    assert not [*(folder / "data" / "snapshot").rglob("*.bin")]
    # What was put there is there when the store is started again.
    verify = f"{sys.executable} -m tasks.storage verify; echo at $AWS_ENDPOINT_URL; exit 3"
    said = run(folder, *STORE, "sh", "-c", verify, code=3)
    assert "all digests match" in said
    # It has ended as its command did, and its secret is in nothing that it prints.
    assert re.search(r"^at http://127\.0\.0\.1:\d+$", said, re.MULTILINE)
    secret = json.loads((folder / ".throughline" / "store" / "settings.json").read_text())
    assert secret["s3_secret"] not in said


def test_its_command_ends_with_it_and_a_missing_one_is_named(array_file, tmp_path):
    folder = make_project(tmp_path / "project", array_file)
    assert "there is no program dcv" in run(folder, *STORE, "dcv", "status", code=2)
    waiting = ("sh", "-c", "umask > mask; sleep 600 & echo $! > pid; wait")
    process = subprocess.Popen([*STORE, *waiting], cwd=folder, env=environment(folder), umask=0o022)
    wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
    process.terminate()
    process.wait(60)
    assert int((folder / "mask").read_text(), 8) == 0o022
    wait_until(lambda: not psutil.pid_exists(int((folder / "pid").read_text())))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["STORE=S3"], "STORE=s3 is all that there is"),
        (["STORE=s3", "DATA=photos"], "STORE=s3 is all that there is"),
        (["DATA=photo"], "there is no demo of DATA=photo"),
        (["DATA=photos", "BUDGET=small"], "there is no demo of DATA=photos BUDGET=small"),
        (["PHOTOS=mine"], "PHOTOS=DIR goes with DATA=photos"),
    ],
)
def test_a_demo_of_what_there_is_not_is_refused(options, said):
    make = ["make", "--dry-run"]
    done = subprocess.run(
        [*make, "demo", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode and said in done.stderr
    for right in (["demo", "STORE=s3"], ["demo", "DATA=photos", "PHOTOS=."], ["ui", *options]):
        subprocess.run([*make, *right], cwd=ROOT, capture_output=True, check=True)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_demo_with_a_store_names_what_the_store_holds():
    """The bucket that the command makes, and what is put into it, are what parameters name."""
    makefile = (ROOT / "Makefile").read_text()
    (put,) = re.findall(r"tasks\.upload (\S+) (s3://\S+);", makefile)
    (path,) = re.findall(r"--set data\.path=(s3://\S+)", makefile)
    assert put == ("data/raw/fashion_mnist", path)
    assert path.startswith("s3://data/")
