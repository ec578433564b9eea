"""What several processes cannot train, found out before any of them is started, and what stages
that measure one process do instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from throughline.assembly.inputs import training_worker
from throughline.config.params import Params
from throughline.plan.training_workers import TrainingWorker, training_worker_from_tf_config
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.progress import echo_fact


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


def measure_one_process(params: Params) -> Params:
    """The parameters by which build and profile measure: those of one process that has whole
    batches, cut as those of the training are.

    Raises:
      ImpossiblePlan: TF_CONFIG names several workers, of which each would measure its slice.
    """
    if (workers := training_worker_from_tf_config(os.environ).count) > 1:
        raise ImpossiblePlan(
            f"TF_CONFIG names {workers} workers, and this stage measures one process; unset it"
        )
    worker = training_worker(params)
    if worker.count > 1:
        echo_fact(
            f"measured in one process, with whole batches; training has {worker.count} processes"
            " (train.processes), whose rates and stalls are others"
        )
    one = {"processes": 1, "batch_multiple": worker.multiple}
    return replace(params, train=params.train.model_copy(update=one))


def name_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """The `count` visible GPUs as CUDA_VISIBLE_DEVICES names them, one by one."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
