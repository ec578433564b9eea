"""The commands of docs/prediction.md run as they stand, one after another, in a project after its
first `dvc repro`.
"""

from __future__ import annotations

import csv
import json
import re
import socket
import subprocess

import mlflow
import pytest

from tests.support.project import ROOT, environment
from tests.support.skips import need

PAGE = (ROOT / "docs" / "prediction.md").read_text()


@pytest.mark.slow
def test_every_command_of_the_page_runs_and_all_ways_give_the_same_class(first):
    need("curl")
    folder, _ = first
    record = json.loads((folder / "runs" / "optimized" / "run.json").read_text())
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    made = mlflow.register_model(f"runs:/{record['mlflow_run_id']}/model", "throughline-data")
    mlflow.MlflowClient().set_registered_model_alias("throughline-data", "champion", made.version)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = "set -eu\n" + "".join(blocks).replace("5001", str(port))
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((folder / "predictions.csv").open()))
    assert [row["input"] for row in rows] == ["examples/0.png", "examples/1.png"]
    for way in ("keras", "serve", "champion"):
        assert f"{way}: {rows[0]['class']}\n" in done.stdout
    assert done.stdout.count("examples/") == 5, "the CSV on standard output, and nothing else"
