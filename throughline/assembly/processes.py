"""Turns a stage into several processes: checks whether they can train, starts or joins them."""

import os
import sys
from collections.abc import Sequence

from throughline.assembly.inputs import training_worker
from throughline.config.params import Params
from throughline.plan.training_workers import TrainingWorker, list_addresses, name_gpus
from throughline.shared.errors import ImpossiblePlan
from throughline.training.processes import run_processes
from throughline.training.replicas import Replicas, count_training_gpus, join


def check_processes(params: Params, name: str, worker: TrainingWorker, *, gpus: int) -> None:
    """Check that configuration `name` can be trained by these processes with `gpus` visible GPUs.

    Raises:
      ImpossiblePlan: It cannot; the message gives the reason.
    """
    batch, count = params.pipelines[name].batch, worker.count
    worker.check(params.batch_size, params.batch_size)
    if count == 1:
        return
    if batch and batch.pack:
        raise ImpossiblePlan(
            f"pipelines.{name}.batch.pack: slices of {count} processes (train.processes) hold"
            " different numbers of documents, so the mean of their losses is not the batch's; use"
            " `batch: {pad_to: auto}`"
        )
    if params.train.jit_compile and not gpus:
        raise ImpossiblePlan(
            f"train.jit_compile: without GPUs, XLA cannot compile the exchange between {count}"
            " processes (train.processes); set it to false"
        )
    if 0 < gpus < count and len(list_addresses(os.environ)) != count:
        raise ImpossiblePlan(
            f"train.processes: {count} processes need a GPU each, and {gpus}"
            f" {'is' if gpus == 1 else 'are'} visible; use at most {gpus}, or auto"
        )


def meet_processes(params: Params, name: str, stage: Sequence[str]) -> Replicas | None:
    """Join the processes that train or measure configuration `name`; alone if there are no others.

    If they are not started yet, run them all on this host, each as `stage`, a module and its
    options, and return None when they have ended.

    Raises:
      ImpossiblePlan: This number of processes cannot train it.
      ProcessLost, SystemExit: One was killed, froze or failed.
    """
    worker, addresses = training_worker(params), list_addresses(os.environ)
    gpus = count_training_gpus()
    check_processes(params, name, worker, gpus=gpus)
    if worker.count > 1 and len(addresses) != worker.count:
        module, *options = stage
        command = [sys.executable, "-m", module, "--pipeline", name, *options]
        run_processes(command, worker.count, gpus=name_gpus(os.environ, gpus))
        return None
    return join(worker, addresses, params.train)
