"""Surveys the data before a search's race; proves after it that the winner's examples are equal.

The survey finds the candidates and their needs. Beyond the steps that contestants run, a training
validates, writes checkpoints, saves the model and logs it to MLflow.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from throughline.assembly.inputs import (
    make_input_spec,
    open_exact_pipeline,
    open_input_pipeline,
    open_inputs,
)
from throughline.assembly.model import build_models_for, configure_process
from throughline.assembly.training import SplitPipelines, open_split_pipelines
from throughline.config.params import Params
from throughline.measurement.draws import check_epoch
from throughline.measurement.equality import digest_examples
from throughline.models.builders import Models
from throughline.models.model_files import save_model
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.sizes import estimate_kept_bytes, estimate_snapshot_bytes
from throughline.plan.steps import Shuffle, shuffle_buffer_size
from throughline.race.jobs import Entry
from throughline.race.training import MANY_EPOCHS, WARM_UP_STEPS, advance, sample_shards, warm_up
from throughline.results.snapshot import SnapshotCost
from throughline.settings import TrainSettings
from throughline.shared.errors import UnequalConfigurations
from throughline.shared.layout import MODEL_FILE, Layout
from throughline.shared.limits import own_memory
from throughline.shared.scratch import Scratch
from throughline.tracking.recorder import import_client
from throughline.training.callbacks import make_early_stopping
from throughline.training.checkpoint_store import CheckpointStore
from throughline.training.checkpoints import CheckpointCallback
from throughline.training.fit import Schedule, SplitEvaluation, fit
from throughline.training.model_state import build_optimizer
from throughline.training.replicas import count_training_gpus
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, find_network, make_step_model
from throughline.tuning.budgets import Limits, Need
from throughline.tuning.question import Survey
from throughline.tuning.space import CEILING, Candidate, Conditions, lay_out_space, read_stored

EPOCHS, VALIDATION_STEPS = 2, 2  # in the training whose memory is measured
EPOCH_S = 2.0  # if steps are slow, epochs end after about this time
# For the growth over epochs, the test split and recording: 67 MiB in 30 epochs of an MLP.
GROWTH_BYTES = 96 * 2**20
SAMPLE_EVERY_S = 0.02


def survey(
    params: Params, root: Path, allow: Sequence[str], limits: Limits, shared: bool = False
) -> Survey:
    """Lay out the candidates for prepared data, and estimate the needs of each."""
    configure_process(params.train)
    data, stored = open_inputs(params, Layout(root)), params.snapshot.stored_fraction
    whole = replace(params, pipelines={"whole": read_stored(params.pipelines, stored)})
    models = build_models_for(whole, data)
    process_bytes, snapshot = own_memory(), SnapshotBytes.of(data)
    pipelines = open_split_pipelines(whole, "whole", data, address="")
    besides_steps_bytes = measure_besides_steps(models, pipelines, params.train, root)
    least_bytes = process_bytes + besides_steps_bytes
    fitting = snapshot.find_fitting(limits.disk_bytes, limits.ram_bytes - least_bytes)
    conditions = Conditions(
        approximate="approximate" in allow,
        unordered="unordered" in allow,
        beyond_memory=snapshot.train > limits.ram_bytes,
        accelerator=count_training_gpus() > 0,
        stored=stored,
        shared=shared,
        fitting=min(stored, fitting),
    )
    sampling = next(iter(params.pipelines.values())).sampling  # the same for all candidates
    space = lay_out_space(params.pipelines, make_input_spec(params, data, "train"), conditions)
    needs = _estimate_needs(space.candidates, data, root, least_bytes=least_bytes)
    return Survey(
        space=space,
        needs=needs,
        besides_steps_bytes=besides_steps_bytes,
        sampled_share=sample_shards(data, sampling).shards.examples("train")
        / sum(map(data.shards.examples, data.shards.splits)),
        examples=pipelines.train.examples,
        steps_per_epoch=pipelines.train.steps_per_epoch,
    )


def measure_besides_steps(
    models: Models, pipelines: SplitPipelines, settings: TrainSettings, root: Path
) -> int:
    """Train a few steps as the train stage does; return the memory it needs beyond them [bytes]."""
    model = make_step_model(models, settings, Feed.of(pipelines.train, settings))
    step, network = StepFunction(model), find_network(model)
    batches = iter(pipelines.train.steps(epochs=MANY_EPOCHS))
    steps = min(WARM_UP_STEPS, warm_up(step, partial(advance, step, batches), seconds=EPOCH_S))
    stepping, validation, scratch = own_memory(), pipelines.validation, Scratch(root)
    with watched() as samples, TemporaryDirectory(dir=scratch.folder) as folder:
        import_client()
        build_optimizer(network)
        stopping = make_early_stopping(settings)
        kept = settings.model_copy(update={"checkpoint_every": "1 epoch"})
        store = CheckpointStore(Path(folder), {})
        checkpoints = CheckpointCallback(pipelines.train, store, kept, None)
        checkpoints.attach(step, None, stopping)
        validated = min(VALIDATION_STEPS, validation.steps_per_epoch)
        fit(
            step,
            batches,
            Schedule(steps_per_epoch=steps, epochs=EPOCHS),
            evaluation=SplitEvaluation(model, validation.dataset(), validated),
            callbacks=[*stopping, checkpoints],
        )
        save_model(models.full_model, Path(folder) / MODEL_FILE)
    values = [variable.value for variable in network.variables]
    copied = sum(value.shape.num_elements() * value.dtype.size for value in values)
    return max(samples) - stepping + copied + GROWTH_BYTES


@contextmanager
def watched() -> Iterator[list[int]]:
    """Collect the memory of this process [bytes] regularly during the block, and at its end."""
    samples: list[int] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_EVERY_S):
            samples.append(own_memory())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(own_memory())


def _estimate_needs(
    candidates: Sequence[Candidate], data: PreparedData, root: Path, *, least_bytes: float
) -> dict[str, Need]:
    """Estimate candidates' needs for all splits, once for those with equal reads and caches."""
    known, needs = dict[object, list[dict[str, float]]](), dict[str, Need]()
    snapshot, splits = SnapshotBytes.of(data), data.shards.splits
    count = data.shards.examples("train")
    for each in candidates:
        config, plan = each.config, each.plan
        key = (config.read, config.cache)
        if key not in known:
            known[key] = [
                {split: estimate_kept_bytes(plan, data, split, where=where) for split in splits}
                for where in ("memory", "disk")
            ]
        memory, disk = known[key]
        kept, written = sum(memory.values()), sum(disk.values())
        copies = 2 if config.read == "arrays" else 1  # parsing copies them
        # Cached examples are in shuffle buffers of this epoch and the next. Buffers of a stream
        # count 0 here, because a contestant holds them in full.
        sizes = [step.size for step in plan.steps if isinstance(step, Shuffle)]
        mixed = sum(shuffle_buffer_size(size, examples=count) for size in sizes)
        buffered = 2 * mixed / count * (memory["train"] + disk["train"])
        stored = snapshot.at(config.snapshot.fraction) if config.read == "snapshot" else 0.0
        needs[each.name] = Need(
            ram_bytes=least_bytes + copies * kept + buffered,
            disk_bytes=written + stored,
            prepare_s=SnapshotCost.read(root / "data").seconds if plan.reads_snapshot else 0.0,
            kept_bytes=kept,
            written_bytes=written,
        )
    least = min((each.ram_bytes for each in needs.values()), default=least_bytes)
    return {**needs, CEILING: Need(ram_bytes=least, disk_bytes=0.0, prepare_s=0.0)}


@dataclass(frozen=True, kw_only=True)
class SnapshotBytes:
    """Bytes of a snapshot: without values (`least`), in full (`most`), and its training split."""

    least: float
    most: float
    train: float

    @classmethod
    def of(cls, data: PreparedData) -> SnapshotBytes:
        least, most = (
            {split: estimate_snapshot_bytes(data, split, part) for split in data.snapshot.splits}
            for part in (0.0, 1.0)
        )
        return cls(least=sum(least.values()), most=sum(most.values()), train=most["train"])

    def at(self, fraction: float) -> float:
        return self.least + fraction * (self.most - self.least)

    def find_fitting(self, disk: float, memory: float) -> float:
        """Return the largest fraction, in hundredths, whose rows fit disk and memory [bytes]."""
        on_disk = (disk - self.least) / (self.most - self.least)
        return max(0, math.floor(100 * min(1.0, on_disk, memory / self.train))) / 100


def prove_equal(entry: Entry) -> str:
    """Prove that a configuration delivers the snapshot's examples, each once per epoch.

    Only approximate pixels may differ. Returns the digest of the training split, or raises
    UnequalConfigurations.
    """
    name, config = entry.name, entry.config
    params = replace(entry.params, pipelines={name: config})
    data = open_inputs(params, Layout(entry.root))
    digests = dict[str, str]()
    for split in data.shards.splits:
        pipeline = open_input_pipeline(params, name, data, split=split, purpose="compare")
        ours = digest_examples(pipeline)
        exact = digest_examples(open_exact_pipeline(params, data, split=split))
        if ours != exact and not config.decode.approximate:
            raise UnequalConfigurations(
                f"{name}: the examples of the {split} split differ from the snapshot's: their"
                f" digest is {ours.digest[:12]} instead of {exact.digest[:12]}"
            )
        digests[split] = ours.digest
    check_epoch(open_input_pipeline(params, name, data))
    return digests["train"]
