"""Datasets for the benchmarks, prepared by the product's own stages.

A dataset is a folder like a project's, with params.yaml and what the stages have written.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from flows.run.changed_params import join_overlays
from flows.run.parameters import Changes
from flows.run.resolution import resolve
from throughline.config.params import Params, check
from throughline.config.params_file import PARAMS_FILE, read_yaml

ROOT = Path(__file__).parent.parent
CROP_224 = {"height": 224, "width": 224}
SMALL, SERIES_SHAPE = 8_000, (1_000_000, 8)  # images of 4×4, rows and columns


def presets(kind: str) -> dict[str, Any]:
    return read_yaml(ROOT / "infra" / "presets" / f"{kind}.yaml")["pipelines!"]


def choose_presets(*names: str, **more: Any) -> dict[str, Any]:
    return {"pipelines!": {name: presets("images")[name] for name in names} | more}


WITH_FLOAT = choose_presets(*presets("images"), snapshot_float=presets("images")["snapshot"])


def demo(name: str) -> dict[str, Any]:
    return read_yaml(ROOT / "infra" / "demo" / f"{name}.yaml")


def write_params(folder: Path, *overlays: Mapping[str, Any]) -> None:
    changes = Changes(overlay=reduce(join_overlays, overlays, {}))
    (folder / PARAMS_FILE).write_text(resolve(ROOT, changes).text)


def prepare(folder: Path, *overlays: Mapping[str, Any]) -> Path:
    """Prepare the data that params.yaml with these overlays names, unless that is done already."""
    folder.mkdir(parents=True, exist_ok=True)
    write_params(folder, *overlays)
    for stage in ("fetch", "ingest", "shard", "snapshot"):
        if not (folder / "data" / "snapshot.json").exists():
            run_module(folder, f"tasks.{stage}")
    return folder


def run_module(folder: Path, module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'whowaits' / 'src'}"}
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)


def read_params(folder: Path, **changes: Any) -> Params:
    """Return the parameters of prepared data, with `changes` in place of some sections."""
    return check({**read_yaml(folder / PARAMS_FILE), **changes})


def from_files(path: Path, **more: Any) -> dict[str, Any]:
    split = {"validation": 0.01, "test": 0.0}
    data = {"source": "image_folder", "path": str(path), "fetch": "none", "split": split}
    return {"augment": [], "batch_size": 64, "data": data, **more}


def find_photos(work: Path, photos: Path | None) -> Path:
    return photos or prepare(work / "demo-photos", demo("photos")) / "data" / "raw" / "photos"


def photos(work: Path, source: Path) -> Path:
    """JPEG class folders → 224×224, batches of 64. Naive reads the original files."""
    resized = from_files(source, preprocess=["decode", {"resize": CROP_224}])
    naive = {"pipelines": {"naive": {"read": "files"}}}
    return prepare(work / "photos", resized, WITH_FLOAT, naive)


def crops(work: Path, source: Path) -> Path:
    """Photos in their original sizes, also in the snapshot; a random 224×224 crop, not resized."""
    cut = from_files(source, preprocess=["decode"], augment=[{"random_crop": CROP_224}])
    return prepare(work / "crops", demo("imagenet"), cut)


def imagenet(work: Path, source: Path) -> Path:
    """Photos stored with a shorter side of 256; a random rectangle of each resized and flipped."""
    return prepare(work / "imagenet", demo("imagenet"), {"data": from_files(source)["data"]})


def fashion_mnist(work: Path) -> Path:
    """28×28 gray images as records of raw pixels, batches of 256."""
    return prepare(work / "fashion_mnist", {"augment": []}, WITH_FLOAT)


def small(work: Path) -> Path:
    """Tiny gray images: reading them takes hardly any time but what a benchmark adds."""
    source = work / "small.npz"
    work.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        images = np.random.default_rng(0).integers(0, 256, (SMALL, 4, 4), np.uint8)
        np.savez(source, x=images, y=np.arange(SMALL) % 4)
    data = {"source": "arrays", "path": str(source), "fetch": "none", "duplicates": "keep"}
    return prepare(work / "small", {"data": data, "augment": []})


def windows(work: Path) -> Path:
    """Windows of 24 steps and the next one, out of a million of eight columns; batches of 256."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "series.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal(SERIES_SHAPE, np.float32))
    return prepare(
        work / "windows",
        {"data": {"source": "time_series", "path": str(path), "fetch": "none"}},
        {"pipelines!": presets("time_series"), "postprocess": ["standardize"]},
    )
