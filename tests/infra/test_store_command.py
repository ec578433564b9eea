"""`python -m infra.local store`: a command with an S3 store in its environment, as `make demo
STORE=s3` uses it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import psutil
import pytest

from tests.support.project import ROOT, environment, make_project, run
from tests.support.stack import wait_for

pytestmark = pytest.mark.slow
STORE = (sys.executable, "-m", "infra.local", "store", "--")
UP = (sys.executable, "-m", "infra.local", "up", "--home", ".throughline/store")

READ = """
from throughline.shared.object_store import open_store
print(open_store("s3://data/raw").read("data.npz") == open("source/data.npz", "rb").read())
"""


def test_a_command_finds_in_the_store_what_the_one_before_has_put_there(array_file, tmp_path):
    """A whole project in another such store: tests/tasks/test_bucket_project.py."""
    folder = make_project(tmp_path / "project", array_file)
    assert "there is no program dcv" in run(folder, *STORE, "dcv", "status", code=2)
    script = '"$0" -m tasks.upload source s3://data/raw; echo at $AWS_ENDPOINT_URL; exit 3'
    said = run(folder, *STORE, "sh", "-c", script, sys.executable, code=3)
    # It has ended as its command did, and its secret is in nothing that it prints.
    assert re.search(r"^at http://127\.0\.0\.1:\d+$", said, re.MULTILINE)
    settings = folder / ".throughline" / "store" / "settings.json"
    assert json.loads(settings.read_text())["s3_secret"] not in said

    script = '"$0" -c "$1" > same; umask > mask; sleep 600 & echo $! > pid; wait'
    command = [*STORE, "sh", "-c", script, sys.executable, READ]
    process = subprocess.Popen(command, cwd=folder, env=environment(folder), umask=0o022)
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
    before = settings.read_text()
    assert "is running; stop it first" in run(folder, *UP, "--s3-port", "9000", code=2)
    assert settings.read_text() == before, "what is refused changes no port"
    process.terminate()
    process.wait(60)
    assert (folder / "same").read_text() == "True\n"
    assert int((folder / "mask").read_text(), 8) == 0o022
    wait_for(lambda: not psutil.pid_exists(int((folder / "pid").read_text())))


REFUSED_DEMOS = (
    (["STORE=S3"], "STORE=s3 is all that there is"),
    (["STORE=s3", "DATA=photos"], "STORE=s3 is all that there is"),
    (["DATA=photo"], "there is no demo of DATA=photo"),
    (["DATA=photos", "BUDGET=small"], "there is no demo of DATA=photos BUDGET=small"),
    (["PHOTOS=mine"], "PHOTOS=DIR goes with DATA=photos"),
)


def test_a_demo_of_what_there_is_not_is_refused():
    def make(*goals: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--dry-run", *goals]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    for options, said in REFUSED_DEMOS:
        done = make("demo", *options)
        assert done.returncode and said in done.stderr
        assert make("ui", *options).returncode == 0, "it takes no notice of them"
    for right in (["STORE=s3"], ["DATA=photos", "PHOTOS=."]):
        assert make("demo", *right).returncode == 0


def test_the_demo_with_a_store_names_what_the_store_holds():
    """The bucket that the command makes, and what is put into it, are what parameters name."""
    makefile = (ROOT / "Makefile").read_text()
    (put,) = re.findall(r"tasks\.upload (\S+) (s3://\S+);", makefile)
    (path,) = re.findall(r"--set data\.path=(s3://\S+)", makefile)
    assert put == ("data/raw/fashion_mnist", path)
    assert path.startswith("s3://data/")
