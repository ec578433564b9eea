"""The examples of pages that say what comes out run as they stand, one after another, each page in
a project after its first `dvc repro`.
"""

import csv
import json
import re
import subprocess
from pathlib import Path

import mlflow
import numpy as np
import pytest

from flows.servers.services import reserved_port
from tests.support.docs_blocks import read_blocks
from tests.support.project import ROOT, environment, run, run_quietly, share_servers, write_params
from tests.support.skips import need
from throughline.config.params_file import read_yaml

pytestmark = pytest.mark.slow


def read_examples(page: str, language: str) -> list[str]:
    return [it.text for it in read_blocks(ROOT / "docs" / page) if it.language == language]


def run_script(folder: Path, script: str) -> str:
    """What a script of bash prints in a project."""
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment(folder) | share_servers([script]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout


def test_the_daily_commands_do_what_their_page_says(first):
    folder, _ = first
    params = read_yaml(folder / "params.yaml")
    del params["pipelines"]["naive"]  # one configuration shows all that the page says
    write_params(folder, params)
    run(folder, "dvc", "repro")
    run_quietly(folder.parent, "git", "init", "--quiet", "--bare", "-b", "main", "origin.git")
    run_quietly(folder, "git", "remote", "add", "origin", str(folder.parent / "origin.git"))
    printed = {}
    for text in read_examples("daily.md", "sh"):
        if "metrics diff" in text:
            save_otherwise(folder / "source" / "data.npz")
        script = text.replace("/srv/throughline", str(folder.parent / "store"))
        printed[text.split("\n")[0].split("  ")[0]] = run_script(folder, script)
    ran = set(re.findall(r"Running stage '(.*)'", printed["dvc exp apply short"]))
    assert ran <= {"identities", "race", "report"}
    assert "source/data.npz" in printed["dvc status"]
    assert re.findall(r"Running stage '(.*)'", printed["dvc status"]) == ["ingest"]
    other = folder.parent / "other"
    assert "epochs: 1" in (other / "params.yaml").read_text()
    assert (other / "runs" / "optimized" / "model.keras").is_file()
    assert (other / "data" / "snapshot" / "train" / "image.bin").is_file()
    assert {*json.loads(run_quietly(other, "dvc", "status", "--json"))} <= {
        "identities",
        "race",
        "report",
    }
    assert "short" not in run_quietly(folder, "git", "worktree", "list")
    assert "up to date" in run_quietly(folder, "dvc", "status")


def save_otherwise(path: Path) -> None:
    """Make another file of the same data, of which ingest alone has to look at it."""
    with np.load(path) as arrays:
        np.savez_compressed(path, **{name: arrays[name] for name in arrays})


def test_all_ways_to_predict_give_the_same_class(first):
    need("curl")
    folder, _ = first
    record = json.loads((folder / "runs" / "optimized" / "run.json").read_text())
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    made = mlflow.register_model(f"runs:/{record['mlflow_run_id']}/model", "throughline-data")
    mlflow.MlflowClient().set_registered_model_alias("throughline-data", "champion", made.version)
    with reserved_port() as port:
        script = "".join(read_examples("prediction.md", "sh")).replace("5001", str(port))
        said = run_script(folder, script)
    rows = list(csv.DictReader((folder / "predictions.csv").open()))
    assert [row["input"] for row in rows] == ["examples/0.png", "examples/1.png"]
    for way in ("keras", "serve", "champion"):
        assert f"{way}: {rows[0]['class']}\n" in said


def test_the_training_guide_gives_the_same_batches_from_memory_and_from_disk(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.chdir(folder)
    names: dict = {}
    for number, block in enumerate(read_examples("training.md", "python"), start=1):
        exec(compile(block, f"docs/training.md, example {number}", "exec"), names)
    assert np.isfinite(float(names["loss"]))
    assert names["next_step"] == 2 * names["mapped"].steps_per_epoch
    alone, whole = names["resident"], names["mapped"]
    assert all(
        np.array_equal(one[0], other[0])
        for one, other in zip(alone.batches(epochs=1), whole.dataset(), strict=True)
    )
