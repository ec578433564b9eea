"""Facts of made-up configurations for tests of rules: photos of which a traced step takes 10 ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.diagnosis.facts import Facts
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Rescale, Resize
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.plan.text_ops import Tokenize
from throughline.results.profiling import Breakdown, IteratorTime
from throughline.settings import PipelineConfig

CORES, BATCH, STEPS, STEP_MS = 4, 64, 20, 10.0
PHOTOS = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=224, width=224)),
    augment=(Flip(),),
    postprocess=(Rescale(),),
    batch_size=BATCH,
)
TEXT = replace(
    PHOTOS,
    schema=labeled(text_feature()),
    preprocess=(Decode(), Tokenize(kind="bytes")),
    augment=(),
    postprocess=(),
)
TRACED = Breakdown(
    steps=STEPS,
    traced_step_ms_mean=STEP_MS,
    wait_ms_p50=0.0,
    wait_ms_p95=0.0,
    wait_ms_mean=0.0,
    iterators=(),
)
WELL = {
    "read": "shards",
    "interleave": {"parallel": "cores"},
    "map": {"parallel": "cores"},
    "prefetch": 2,
}


def iterator(step: str, self_ms: float, **more: Any) -> IteratorTime:
    """A step of a plan that worked so long in each train step."""
    usual = {"call_ms_p50": 4.0, "call_ms_p95": 4.0, "parallelism": 1.0, "critical_pct": 60.0}
    path = f"Iterator::Root::ParallelMapV2::{step}Map"
    return IteratorTime(path=path, step=step, calls=40, self_ms=STEPS * self_ms, **usual | more)


def facts_of(config: dict, *, spec: InputSpec = PHOTOS, work_ms: float = 5.0, **more: Any) -> Facts:
    """What is known about a configuration, each of whose steps works `work_ms` in a train step;
    `more` are other facts than the usual ones.
    """
    checked = PipelineConfig.model_validate(config)
    plan = make_plan(checked, spec)
    iterators = tuple(iterator(step.trace_name, work_ms) for step in plan.steps)
    known: dict[str, Any] = {
        "breakdown": replace(TRACED, iterators=iterators),
        "cores": CORES,
        "batch_mib": 9.0,
        "stored_mib": 400.0,
        "available_memory_mib": 20_000.0,
        "shard_count": 8,
        "shard_mib": 120.0,
        "examples": 3200.0,
        "examples_per_step": spec.batch_size,
    }
    return Facts(config=checked, plan=plan, **{**known, **more})
