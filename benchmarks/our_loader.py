"""A loader that takes turns: a configuration on prepared data, or memcpy as the limit.

    python -m benchmarks.our_loader NAME --data DIR

Batches are uint8, as an accelerator would get them; configurations named `_float` cast on the host.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parse_by
from benchmarks.data import CROP_224, read_params
from benchmarks.peer_loaders import serve
from throughline.shared.allocator import raise_malloc_thresholds
from throughline.shared.layout import Layout

PLENTY, WARM_S = 100_000, 1.0  # epochs; time before the first turn
COPIED, BATCH = 24, 64  # batches, and examples of each


def open_batches(folder: Path, name: str, stack: ExitStack) -> Iterator[Any]:
    """Open a configuration's batches; run an epoch if that fills a cache, else at most a second."""
    from throughline.assembly.inputs import make_input_spec, open_input_service, open_inputs
    from throughline.pipelines.input_pipeline import InputPipeline
    from throughline.plan.plan import make_plan

    params = read_params(folder)
    config, data = params.pipelines[name], open_inputs(params, Layout(folder))
    spec = make_input_spec(params, data, "train")
    if not name.endswith("_float") and spec.window is None:
        spec = replace(spec, postprocess=())
    address, plan = stack.enter_context(open_input_service(config)), make_plan(config, spec)
    given: Any = {"split": "train", "seed": 0, "service_address": address}
    pipeline = InputPipeline(plan=plan, data=data, **given)
    batches, began = pipeline.batches(epochs=PLENTY), time.perf_counter()
    for _ in itertools.islice(batches, pipeline.steps_per_epoch):
        if not pipeline.plan.caches and time.perf_counter() - began > WARM_S:
            break
    return batches


def copy_batches() -> Iterator[np.ndarray]:
    shape = (COPIED, BATCH, *CROP_224.values(), 3)  # more than the CPU's caches hold
    source = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    target = np.empty(shape[1:], np.uint8)
    while True:
        for batch in source:
            np.copyto(target, batch)
            yield target


def main() -> None:
    parser = parse_by(__doc__)
    parser.add_argument("name", help="a configuration of the data's params.yaml, or memcpy")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    raise_malloc_thresholds()
    if options.name == "memcpy":
        serve(copy_batches(), len)
        return
    with ExitStack() as stack:
        batches = open_batches(options.data, options.name, stack)
        serve(batches, lambda batch: int(batch[1].shape[0]))


if __name__ == "__main__":
    main()
