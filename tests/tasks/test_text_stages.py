"""Texts go through every stage: from class folders to a report, by a tokenizer that is fitted on
them.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest

from tests.support.project import SMALL, run_stages, write_params
from throughline.data.columns.index import read_index
from throughline.results.build import BuildResult
from throughline.results.comparison import Comparison
from throughline.results.train import TrainResult
from throughline.shared.files import digest_file
from throughline.shared.layout import Layout

SUBJECTS = {"ham": "meeting report lunch monday", "spam": "winner prize click cash"}
CONFIGS = {
    "naive": {"read": "shards"},
    "by_length": {
        "read": "snapshot",
        "shuffle": {"kind": "global"},
        "batch": {"pad_to": [32, 64]},
        "prefetch": 2,
    },
}


def write_mails(root) -> None:
    """Mails of 3 to 40 words, most of them about the subject of their class."""
    draw = np.random.default_rng(5)
    for number in range(160):
        label = ("ham", "spam")[number % 2]
        words = [*SUBJECTS[label].split() * 3, "dear", "the", "and", "friend"]
        path = root / label / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{' '.join(draw.choice(words, size=draw.integers(3, 40)))} {number}\n")


@pytest.mark.slow
def test_mails_go_through_every_stage(tmp_path):
    params = copy.deepcopy(SMALL) | {
        "preprocess": [{"tokenize": {"vocabulary": 80}}, {"truncate": {"tokens": 64}}],
        "augment": [],
        "postprocess": [],
        "batch_size": 16,
        "pipelines": CONFIGS,
        "model": {"name": "text_classifier", "options": {"width": 16}},
    }
    params["data"] |= {"source": "text_folder", "path": "source/mails"}
    params["train"] |= {"epochs": 3}
    folder = tmp_path / "project"
    write_mails(folder / "source" / "mails")
    write_params(folder, params)
    run_stages(folder, "fetch", "ingest", "shard", "snapshot", "build@naive", "build@by_length")
    run_stages(folder, "train@by_length", "profiling@by_length", "report")
    layout = Layout(folder)
    built = {name: BuildResult.read(layout.results(name)) for name in CONFIGS}
    naive, by_length = (built[name].examples_digests for name in ("naive", "by_length"))
    assert naive == by_length, "the same tokens"
    assert (
        built["by_length"].sequence_batches.padding_pct
        < built["naive"].sequence_batches.padding_pct
    )
    trained = TrainResult.read(layout.results("by_length"))
    assert trained.test["accuracy"] > 0.8 > trained.held_out.constant_metric
    (tokenizer,) = read_index(layout.snapshot).files.items()
    assert tokenizer == ("tokenizer.model", digest_file(layout.snapshot / "tokenizer.model"))
    compared = Comparison.read(layout.report)
    assert [row.pipeline for row in compared.configurations] == ["by_length"]
    assert set(compared.missing) == {"naive"}, "which was not trained"
    assert "padding" in (layout.report / "index.html").read_text()
