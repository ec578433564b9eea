"""Datasets for the benchmarks, prepared by the product's own stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ruamel.yaml import YAML

import throughline  # noqa: F401 - sets the environment before TensorFlow is imported
from throughline.config.params import Params, check
from throughline.data.columns.stored import Destination
from throughline.data.ingest import ingest
from throughline.data.known_datasets import fetch_fashion_mnist
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.writing import shard
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.shared.layout import Layout

ROOT = Path(__file__).parent.parent
SMALL = 8_000  # images of 4×4
SERIES_SHAPE = (1_000_000, 8)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A dataset with its processing as params.yaml has it; `layout` has the stages' results."""

    name: str
    document: dict[str, Any]
    layout: Layout

    @property
    def params(self) -> Params:
        return check(self.document)


def presets(kind: str) -> dict[str, Any]:
    return YAML(typ="safe").load((ROOT / "infra" / "presets" / f"{kind}.yaml").read_text())[
        "pipelines!"
    ]


def photos(source: Path, work: Path) -> Workload:
    """JPEG class folders → 224×224, batches of 64. Naive reads the original files."""
    resize = {"resize": {"height": 224, "width": 224}}
    return _equal_sizes("photos", source, work, ops=[resize], floats_too=True)


def noise(source: Path, work: Path) -> Workload:
    """JPEGs of equal size as they are, batches of 64. Naive reads the original files."""
    return _equal_sizes("noise", source, work, ops=[], floats_too=False)


def _equal_sizes(
    name: str, source: Path, work: Path, *, ops: list[Any], floats_too: bool
) -> Workload:
    pipelines = presets("images") | {"naive": {"read": "files"}}
    document = {
        "data": {
            "source": "image_folder",
            "path": str(source.resolve()),
            "split": {"validation": 0.01, "test": 0.0},
        },
        "preprocess": ["decode", *ops],
        "batch_size": 64,
        "pipelines": pipelines | (floats(pipelines) if floats_too else {}),
    }
    return prepare(name, document, work)


CROP_224 = {"height": 224, "width": 224}


def crops(source: Path, work: Path) -> Workload:
    """Photos in variable sizes, which the snapshot keeps; a random 224×224 of each, unresized."""
    augment = [{"random_crop": CROP_224}]
    return _variable_sizes("crops", source, work, preprocess=["decode"], augment=augment)


def resized_crops(source: Path, work: Path) -> Workload:
    """The photos of `crops`, a random rectangle of each resized to 224×224 and flipped."""
    augment = [{"random_resized_crop": CROP_224}, "flip"]
    return _variable_sizes("resized_crops", source, work, preprocess=["decode"], augment=augment)


def imagenet(source: Path, work: Path) -> Workload:
    """Like `resized_crops`, but stored with a shorter side of 256 (infra/demo/imagenet.yaml)."""
    return _variable_sizes(
        "imagenet",
        source,
        work,
        preprocess=["decode", {"resize": {"shorter": 256}}],
        augment=[{"random_resized_crop": CROP_224}, "flip"],
    )


def _variable_sizes(
    name: str, source: Path, work: Path, *, preprocess: list[Any], augment: list[Any]
) -> Workload:
    unlike = work / "photos-of-unlike-sizes"
    if not unlike.exists():
        draw = np.random.default_rng(0)
        for path in sorted(source.rglob("*.jpg")):
            kept = work / "unlike.partial" / path.relative_to(source)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(path) as photo:
                width, height = (int(draw.integers(3 * size // 4, size + 1)) for size in photo.size)
                photo.crop((0, 0, width, height)).save(kept, quality=90)
        (work / "unlike.partial").rename(unlike)
    kept = (
        "naive",
        "heuristic",
        "autotune",
        "map_parallel",
        "vectorized",
        "cache_memory",
        "cache_disk",
        "snapshot",
        "optimized",
        "balanced",
    )
    document = {
        "data": {
            "source": "image_folder",
            "path": str(unlike.resolve()),
            "split": {"validation": 0.01, "test": 0.0},
        },
        "preprocess": preprocess,
        "augment": augment,
        "batch_size": 64,
        "pipelines": (
            {name: presets("images")[name] for name in kept} | {"naive": {"read": "files"}}
        ),
    }
    return prepare(name, document, work)


def fashion_mnist(work: Path) -> Workload:
    """28×28 gray images as records of raw pixels, batches of 256."""
    source = work / "raw-fashion-mnist"
    fetch_fashion_mnist(source)
    pipelines = presets("images")
    document = {
        "data": {"source": "fashion_mnist", "path": str(source)},
        "preprocess": ["decode"],
        "batch_size": 256,
        "pipelines": pipelines | floats(pipelines),
    }
    return prepare("fashion_mnist", document, work)


def small(work: Path, batch_size: int = 64) -> Workload:
    """Tiny gray images, whose input takes only the time that a benchmark adds to it."""
    source = work / "small.npz"
    if not source.exists():
        images = np.random.default_rng(0).integers(0, 256, (SMALL, 4, 4), np.uint8)
        np.savez(source, x=images, y=np.arange(SMALL) % 4)
    document = {
        "data": {"source": "arrays", "path": str(source), "duplicates": "keep"},
        "preprocess": ["decode"],
        "batch_size": batch_size,
        "pipelines": {"naive": {"read": "shards"}},
    }
    return prepare("small", document, work)


def windows(work: Path) -> Workload:
    """Windows of 24 steps and the next one, of a million steps of eight columns, batches of 256."""
    path = work / "series.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal(SERIES_SHAPE, np.float32))
    document = {
        "data": {"source": "time_series", "path": str(path)},
        "preprocess": ["decode"],
        "postprocess": ["standardize"],
        "window": {"length": 24},
        "batch_size": 256,
        "pipelines": presets("time_series"),
    }
    return prepare("windows", document, work)


def floats(pipelines: dict[str, Any]) -> dict[str, Any]:
    """Return copies of some configurations that cast to float on the host, unlike the originals."""
    return {f"{name}_float": pipelines[name] for name in ("naive", "vectorized", "snapshot")}


def prepare(name: str, document: dict[str, Any], work: Path) -> Workload:
    """Ingest, shard and snapshot the data of a document, unless that is done already."""
    document = {"postprocess": ["rescale"], **document}
    params = check(document)
    layout = Layout(work / name)
    if not (layout.snapshot / "index.json").exists():
        manifest = ingest(params.data, layout.manifest)
        manifest = replace(manifest, folder=layout.manifest)
        write_snapshot(
            shard(manifest, layout.shards, settings=params.shard),
            ShardFiles(folder=layout.shards),
            Destination(folder=layout.snapshot),
            preprocess=params.preprocess,
        )
    return Workload(name=name, document=document, layout=layout)
