"""What several processes cannot train, found out before any of them is started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from throughline.config.params import Params
from throughline.plan.training_workers import TrainingWorker
from throughline.shared.errors import ImpossiblePlan


def check_processes(params: Params, name: str, worker: TrainingWorker, *, gpus: int) -> None:
    """Check that configuration `name` can be trained by so many processes, where so many GPUs are
    visible.

    Raises:
      ImpossiblePlan: it cannot, with the reason.
    """
    config, count = params.pipelines[name], worker.count
    worker.check(params.batch_size, params.batch_size)
    if count == 1:
        return
    whose = f"train.processes: {count} processes"
    if config.batch and config.batch.pack:
        raise ImpossiblePlan(
            f"pipelines.{name}.batch.pack: slices of {count} processes (train.processes) hold"
            " different numbers of documents, and the mean of their means is not the batch's; use"
            " `batch: {pad_to: auto}`"
        )
    if params.train.jit_compile and not gpus:
        raise ImpossiblePlan(
            f"train.jit_compile: XLA has no form of what {count} processes exchange without GPUs"
            " (train.processes); set it to false"
        )
    if 0 < gpus < count and not os.environ.get("TF_CONFIG"):
        raise ImpossiblePlan(
            f"{whose} need a GPU each, and {gpus} {'is' if gpus == 1 else 'are'} visible; use at"
            f" most {gpus}, or auto"
        )


def name_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """The `count` visible GPUs as CUDA_VISIBLE_DEVICES names them, one by one."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
