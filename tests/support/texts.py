"""Small texts of very different length in two classes, through ingest, shards and snapshot."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.prepared import prepare
from throughline.config.params import Params, check
from throughline.shared.layout import Layout

PREPROCESS = [{"tokenize": {"kind": "bytes"}}, {"truncate": {"tokens": 60}}]
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "üñí")
SPLIT = {"validation": 0.2, "test": 0.0}


def write_texts(root: Path, count: int = 150) -> Path:
    """Write texts of 1 to 40 words, most of them short, into two class folders."""
    draw = np.random.default_rng(3)
    for number in range(count):
        words = draw.choice(WORDS, size=1 + int(draw.exponential(6)) % 40)
        path = root / ("ham", "spam")[number % 2] / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join([f"{number}", *words]))
    return root


def prepare_texts(root: Path) -> Layout:
    """The texts in `root`/source through the stages up to snapshot."""
    source = write_texts(root / "source")
    data = {"source": "text_folder", "path": str(source), "split": SPLIT}
    return prepare(params_of({}, data=data), Layout(root), min_shards=3)


def params_of(config: dict[str, Any], **sections: Any) -> Params:
    """Parameters with one configuration `p` for these texts; `sections` replace others."""
    usual = {
        "data": {"source": "text_folder", "path": "unused", "split": SPLIT},
        "preprocess": PREPROCESS,
        "batch_size": 8,
        "model": {"name": "transformer_encoder", "options": {"width": 8, "blocks": 1}},
        "pipelines": {"p": {"read": "shards"} | config},
    }
    return check({**usual, **sections})
