"""`python -m infra.local store`: a command with an S3 store in its environment."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import psutil
import pytest

from tests.support.project import environment, make_project, run
from tests.support.stack import wait_for

STORE = (sys.executable, "-m", "infra.local", "store", "--")
UP = (sys.executable, "-m", "infra.local", "up", "--home", ".throughline/store")
READ = """
from throughline.shared.object_store import open_store
print(open_store("s3://data/raw").read("data.npz") == open("source/data.npz", "rb").read())
"""


@pytest.mark.slow
def test_a_command_finds_in_the_store_what_the_one_before_has_put_there(array_file, tmp_path):
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
