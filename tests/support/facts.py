"""Facts of made-up configurations whose steps take exactly what the cost model says, for
tests of rules and of the diagnosis.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from throughline.data.encodings.arrays import pixels_feature
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.diagnosis.cost_model import (
    Costs,
    ModelStepCost,
    OpCost,
    estimate_load,
    predict_step_ms,
)
from throughline.diagnosis.facts import Facts
from throughline.diagnosis.trace_breakdown import Breakdown, IteratorTime
from throughline.measurement.verdict import Stall
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Rescale, Resize
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.plan.text_ops import Tokenize
from throughline.settings import PipelineConfig

CORES, BATCH = 4, 64
PHOTOS = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=224, width=224)),
    augment=(Flip(),),
    postprocess=(Rescale(),),
    batch_size=BATCH,
)
TINY = replace(
    PHOTOS,
    schema=labeled(pixels_feature((28, 28, 1))),
    preprocess=(Decode(),),
)
TEXT = replace(
    PHOTOS,
    schema=labeled(text_feature()),
    preprocess=(Decode(), Tokenize(kind="bytes")),
    augment=(),
    postprocess=(),
)
PHOTO_COSTS = Costs(
    call_us=20,
    stack_us=5,
    read_us={"shards": 10, "files": 30, "snapshot": 8},
    ops={
        "parse": OpCost(example_us=5, batch_us=1),
        "decode": OpCost(example_us=900, batch_us=None),
        "resize": OpCost(example_us=300, batch_us=280),
        "flip": OpCost(example_us=20, batch_us=15),
        "rescale": OpCost(example_us=30, batch_us=30),
    },
)
TINY_COSTS = Costs(
    call_us=20,
    stack_us=0.3,
    read_us={"shards": 1, "snapshot": 0.5},
    ops={
        name: OpCost(example_us=1, batch_us=0.5) for name in ("parse", "decode", "flip", "rescale")
    },
)


def facts_of(
    config: dict,
    *,
    spec: InputSpec = PHOTOS,
    costs: Costs = PHOTO_COSTS,
    model_ms: float = 10.0,
    on_accelerator: bool = True,
    **more: Any,
) -> Facts:
    """What is known about a configuration; `more` are other facts than the usual ones."""
    checked = PipelineConfig.model_validate(config)
    plan = make_plan(checked, spec)
    load = estimate_load(plan, costs, cores=CORES)
    model_step = model_step_of(model_ms, on_accelerator=on_accelerator)
    train_ms = predict_step_ms(load, model_step, CORES) if load else 2 * model_ms
    stall = 100 * (1 - model_ms / train_ms)
    known: dict[str, Any] = {
        "breakdown": replace(WAITING, traced_step_ms_mean=train_ms, wait_ms_mean=0.0),
        "batch_mib": 9.0,
        "stored_mib": 400.0,
        "available_memory_mib": 20_000.0,
        "shard_count": 8,
        "shard_mib": 120.0,
        "epoch_gap_ms": None,
        "epoch_ms": 50 * train_ms,
        "cold_examples_per_s": 1000.0,
        "input_examples_per_s": 1000.0,
        "examples_per_step": spec.batch_size,
    }
    facts = Facts(
        config=checked, plan=plan, costs=costs, load=load, cores=CORES,
        on_accelerator=on_accelerator, model_step_ms=model_ms, train_step_ms=train_ms,
        wait_pct=stall, stall=Stall(pct=stall, low_pct=stall, high_pct=stall), **known,
    )  # fmt: skip
    return replace(facts, **more)


def model_step_of(model_ms: float, *, on_accelerator: bool) -> ModelStepCost:
    """A model whose step takes so long, and as much work."""
    return ModelStepCost(step_ms=model_ms, core_ms=model_ms, on_accelerator=on_accelerator)


IDLE_GPU = Breakdown(
    steps=20,
    traced_step_ms_mean=10.0,
    wait_ms_p50=0.0,
    wait_ms_p95=0.0,
    wait_ms_mean=0.0,
    iterators=(),
    gpu_busy_ms=5.0,
)
WAITING = replace(IDLE_GPU, wait_ms_mean=50.0, gpu_busy_ms=None)
STRAGGLING = IteratorTime(
    path="Iterator::Root::ParallelMapV2", step="decode", calls=40, self_ms=400.0,
    call_ms_p50=4.0, call_ms_p95=40.0, parallelism=1.0,
    critical_pct=60.0,
)  # fmt: skip
UNEVEN = replace(WAITING, iterators=(STRAGGLING,))
WELL = {
    "read": "shards",
    "interleave": {"parallel": "cores"},
    "map": {"parallel": "cores"},
    "prefetch": 2,
}
