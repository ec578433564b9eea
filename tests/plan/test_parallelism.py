"""The words of a `parallel` field mean the same wherever they are read."""

from __future__ import annotations

import pytest
import tensorflow as tf

from throughline.plan.parallelism import Parallelism
from throughline.shared.limits import usable_cores

HERE = usable_cores()


@pytest.mark.parametrize(
    ("setting", "calls", "threads", "text"),
    [
        ("none", None, 1, "none"),
        ("auto", tf.data.AUTOTUNE, 6, "auto"),
        ("cores", HERE, 6, "cores"),
        (3, 3, 3, "3"),
    ],
)
def test_every_word_has_its_calls_its_threads_and_its_text(setting, calls, threads, text):
    parallel = Parallelism(setting)
    assert (parallel.num_parallel_calls(), parallel.threads(6), str(parallel)) == (
        calls,
        threads,
        text,
    )
    shared = parallel.num_parallel_calls(on_host=HERE)
    assert shared == (1 if setting == "cores" else calls), "processes of a host share its cores"
    assert parallel.is_sequential == (setting == "none")
    assert parallel.is_autotuned == (setting == "auto")
