"""The parent run of a comparison: how it ends, and where its pages are."""

from __future__ import annotations

import signal
import subprocess
import sys

import mlflow
import pytest

from tests.support.project import ROOT
from throughline.tracking.comparison_run import OPEN, UI_URL, open_comparison, run_urls
from throughline.tracking.experiments import RunKey
from throughline.tracking.store import store_home

pytestmark = pytest.mark.integration
KEY = RunKey(dataset="photos", pipeline="comparison", data_digest="d")


def test_a_comparison_that_was_killed_is_no_running_one_when_the_next_begins(mlflow_store):
    code = (
        "import os, signal\n"
        "from throughline.tracking.comparison_run import open_comparison\n"
        "from throughline.tracking.experiments import RunKey\n"
        "key = RunKey(dataset='photos', pipeline='comparison', data_digest='d')\n"
        "with open_comparison(key, 'comparison') as parent:\n"
        "    print(parent, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    cut = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert cut.returncode == -signal.SIGKILL, cut.stderr
    killed = cut.stdout.split()[-1]
    assert mlflow.get_run(killed).info.status == "RUNNING"
    with open_comparison(KEY, "comparison") as first, open_comparison(KEY, "comparison"):
        assert mlflow.get_run(killed).info.status == "KILLED"
        assert mlflow.get_run(first).info.status == "RUNNING", "its process is alive"
    assert not list((store_home() / OPEN).iterdir())


def test_pages_are_linked_at_the_address_that_browsers_know(mlflow_store, monkeypatch):
    with open_comparison(KEY, "comparison") as parent:
        assert run_urls(parent) is None, "a file has no pages"
        run = mlflow.get_run(parent)
    monkeypatch.setattr(mlflow, "get_run", lambda _: run)
    monkeypatch.setattr(mlflow, "get_tracking_uri", lambda: "http://mlflow:5000")
    assert all(page.startswith("http://mlflow:5000/#/") for page in run_urls(parent))
    monkeypatch.setenv(UI_URL, "https://runs.example/mlflow/")
    assert all(page.startswith("https://runs.example/mlflow/#/") for page in run_urls(parent))
