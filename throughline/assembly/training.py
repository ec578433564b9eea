"""One training: the pipelines of its splits, the training itself, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from throughline.assembly.inputs import check_memory, open_input_pipeline
from throughline.config.model_checks import find_monitor_problem
from throughline.config.params import Params
from throughline.measurement.baseline import describe_held_out, describe_next_tokens
from throughline.measurement.gpus import used_gpus
from throughline.measurement.hardware import UsageMonitor
from throughline.models.builders import Models, Target
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.steps import TokenWindow
from throughline.results.base import Usage
from throughline.results.train import TrainResult, TrainThroughput
from throughline.settings import TrainSettings
from throughline.shared.errors import UnknownModel
from throughline.shared.progress import echo_fact
from throughline.training.callbacks import (
    Callbacks,
    find_best_epoch,
    find_stopping_key,
    make_callbacks,
    may_replace_weights,
)
from throughline.training.checkpoints import CheckpointCallback
from throughline.training.compiling import explain_misfit
from throughline.training.fit import Position, Schedule, SplitEvaluation, fit
from throughline.training.model_state import build_optimizer
from throughline.training.replicas import Replicas, explain_losses
from throughline.training.replicated_model import (
    StepDeadline,
    adapt_to_replicas,
    check_weights,
    make_random_layers_differ,
)
from throughline.training.step_function import StepFunction
from throughline.training.step_model import Feed, find_network, make_step_model

RATE_SETTERS = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)


@dataclass(frozen=True, kw_only=True)
class SplitPipelines:
    """The input pipelines of one configuration for the three splits; `test` may be missing."""

    train: InputPipeline
    validation: InputPipeline
    test: InputPipeline | None


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """A training's `rows` (one per epoch), the float32 loss of each step, and its result.

    `ended_by` is the key of params.yaml that ended it early; empty if none did.
    """

    rows: list[dict[str, float]]
    losses: Sequence[float]
    result: TrainResult
    steps: int
    ended_by: str


@dataclass(frozen=True, kw_only=True)
class PreparedTraining:
    """A training that continues from `start`; its network has the weights of that position."""

    train_function: StepFunction
    network: keras.Model
    validation: SplitEvaluation
    callbacks: Callbacks
    start: Position


def open_split_pipelines(
    params: Params, name: str, data: PreparedData, *, address: str
) -> SplitPipelines:
    """Open the configuration for training, and the held-out splits in order.

    Raises:
      ImpossiblePlan: The configuration cannot work, or its kept data does not fit into memory.
    """
    train = open_input_pipeline(params, name, data, address=address)
    held_out = {
        split: open_input_pipeline(params, name, data, split=split, purpose="evaluate")
        for split in ("validation", "test")
        if split in data.shards.splits
    }
    check_memory([train, *held_out.values()])
    return SplitPipelines(train=train, validation=held_out["validation"], test=held_out.get("test"))


def train(
    models: Models,
    pipelines: SplitPipelines,
    checkpoints: CheckpointCallback,
    *,
    settings: TrainSettings,
    targets: Sequence[int] | None = None,
    replicas: Replicas | None = None,
) -> TrainingOutcome:
    """Train, resuming from `checkpoints`, and evaluate on the held-out splits.

    `targets` are the predicted columns of a series; each of the `replicas` calls this function.

    Raises:
      ProcessLost, ProcessesDiffer: Another process is gone, or has other work or weights.
      UnknownModel: Settings contradict each other, or a callback ended the first epoch.
    """
    replicas = replicas or Replicas()
    training = prepare(models, pipelines, checkpoints, settings, replicas)
    callbacks = training.callbacks
    usage = run_epochs(training, pipelines.train, checkpoints, settings, replicas)
    if not checkpoints.rows:
        raise UnknownModel("train.callbacks: one ended training before its first epoch was done")
    cpu_s = float(replicas.exchange([round(usage.cpu_s * 1e6)]).sum() / 1e6)  # of all processes
    test = {}
    if pipelines.test is not None:
        model, test_split = training.train_function.model, pipelines.test.dataset()
        test = SplitEvaluation(model, test_split, pipelines.test.steps_per_epoch).run()
    best, timer, rows = find_best_epoch(callbacks), training.train_function.timer, checkpoints.rows
    kept = {**rows[-1 if best is None else best]}
    kept.pop("epoch", None)
    if averages_weights(training.network) or may_replace_weights(callbacks):
        # The kept weights differ from those after the last epoch.
        kept |= {f"val_{name}": value for name, value in training.validation.run().items()}
    window, per_epoch = pipelines.train.plan.window, pipelines.train.steps_per_epoch
    examples_per_step = pipelines.train.examples / per_epoch
    measured = checkpoints.measured_steps * examples_per_step
    rates = [one * examples_per_step for one in timer.rates]
    # If everything was trained before an interruption, only the rows have rates.
    rates = rates or [row["examples_per_s"] for row in rows]
    if isinstance(window, TokenWindow):
        held_out = describe_next_tokens(pipelines.train.data, window)
    else:
        held_out = describe_held_out(pipelines.train.data, targets=targets)
    result = TrainResult(
        metric=models.target.metric,
        held_out=held_out,
        last_epoch=with_perplexity(kept, models.target),
        test=with_perplexity(test, models.target),
        throughput=TrainThroughput(
            train_examples_per_s=float(np.median(rates[1:] or rates)), cold_examples_per_s=rates[0]
        ),
        step=timer.step_times() if timer.rates else None,
        cpu_seconds_per_1k_examples=cpu_s / measured * 1000 if measured else None,
        usage=usage,
        processes=replicas.worker.count,
    )
    early = checkpoints.steps < settings.epochs * per_epoch
    return TrainingOutcome(
        rows=rows,
        losses=checkpoints.losses,
        result=result,
        steps=checkpoints.steps,
        ended_by=find_stopping_key(callbacks, settings) if early else "",
    )


def prepare(
    models: Models,
    pipelines: SplitPipelines,
    checkpoints: CheckpointCallback,
    settings: TrainSettings,
    replicas: Replicas,
) -> PreparedTraining:
    """Build the model to train, check its settings, and restore the checkpoint."""
    feed, held_out = Feed.of(pipelines.train, settings), pipelines.validation.dataset()
    with explain_losses(replicas.worker), replicas.scope():
        model = make_step_model(models, settings, feed)
        network, callbacks = find_network(model), make_callbacks(settings)
        if replicas.several:
            adapt_to_replicas(model, network)
        validation = SplitEvaluation(
            model,
            held_out,
            pipelines.validation.steps_per_epoch,
            agree=replicas.take_chiefs,  # rounding could otherwise end only some processes
        )
        # This makes the variables of metrics, whose values may be restored, and shows their names.
        shapes = {"labels": held_out.element_spec[1].shape, "outputs": models.network.output_shape}
        with explain_misfit(settings, **shapes):
            first = validation.run(steps=1)
        check_metrics(first, settings, models.target)
        check_direction(network, settings)
        check_averages(network, callbacks)
        check_rate(network, callbacks)
        build_optimizer(network)
        with replicas.chief_first():
            start = checkpoints.restore(network)
        replicas.check_same(
            {"checkpoint": str(start)},
            remedy="runs/ has to be on storage that all hosts of the training share",
        )
        make_random_layers_differ(replicas, network)
        return PreparedTraining(
            train_function=StepFunction(model),
            network=network,
            validation=validation,
            callbacks=callbacks,
            start=start,
        )


def run_epochs(
    training: PreparedTraining,
    pipeline: InputPipeline,
    checkpoints: CheckpointCallback,
    settings: TrainSettings,
    replicas: Replicas,
) -> Usage:
    """Train from the start position to the end, and return the time and hardware that it used."""
    train_function, start, epochs = training.train_function, training.start, settings.epochs
    if checkpoints.ended:
        echo_fact("the interrupted training has no step left; continuing after its last epoch")
    elif start != Position():
        echo_fact(f"resuming interrupted training at epoch {start.epoch + 1}, step {start.step:,}")
    first = start.epoch * pipeline.steps_per_epoch + start.step
    batches = [] if checkpoints.ended else pipeline.steps(first_step=first, epochs=epochs)
    devices = {str(variable.value.device) for variable in training.network.variables}
    watching = [StepDeadline(replicas, train_function, settings)] if replicas.several else []
    with (
        UsageMonitor(used_gpus(devices)) as monitor,
        explain_losses(replicas.worker),
        replicas.scope(),
    ):
        checkpoints.attach(train_function, monitor, training.callbacks, agree=replicas.is_any)
        fit(
            train_function,
            batches,
            Schedule(steps_per_epoch=pipeline.steps_per_epoch, epochs=epochs, start=start),
            evaluation=training.validation,
            callbacks=[*watching, *training.callbacks, checkpoints],
            last_logs=checkpoints.last_logs,
        )
        check_weights(replicas, training.network)
    return monitor.measured


def with_perplexity(values: Mapping[str, float], target: Target) -> dict[str, float]:
    """Add the perplexity of each loss, if next tokens are predicted."""
    losses = [name for name in values if name.endswith("loss") and target.kind == "next_token"]
    with np.errstate(over="ignore"):  # infinite for a diverged training
        names = {f"{name.removesuffix('loss')}perplexity": name for name in losses}
        return {**values, **{one: float(np.exp(values[loss])) for one, loss in names.items()}}


def check_metrics(first: Mapping[str, float], settings: TrainSettings, target: Target) -> None:
    """Refuse a model whose metrics, those of its `first` batch, lack one that is needed later."""
    stopping = settings.early_stopping
    if stopping and (problem := find_monitor_problem(stopping.monitor, first)):
        raise UnknownModel(problem)
    if target.kind == "next_token" and target.metric not in first:
        raise UnknownModel(
            f"the model's builder compiles it without {target.metric}, by which models of next"
            f' tokens are compared; add metrics=["{target.metric}"]'
        )


def check_direction(network: keras.Model, settings: TrainSettings) -> None:
    """Refuse early stopping by a metric whose better direction Keras does not know."""
    stopping = settings.early_stopping
    if stopping is None or stopping.mode != "auto":
        return
    name = stopping.monitor.removeprefix("val_")
    metrics = [one for each in network.metrics for one in getattr(each, "metrics", [each])]
    if name != "loss" and not any(
        one.name == name and hasattr(one, "_direction") for one in metrics
    ):
        raise UnknownModel(
            f"train.early_stopping.mode: Keras does not know whether {stopping.monitor} is better"
            " when it is higher; set max or min"
        )


def check_averages(network: keras.Model, callbacks: Callbacks) -> None:
    """Refuse a callback whose best epoch's weights would replace the averages of `use_ema`."""
    stops = [one for one in callbacks if isinstance(one, keras.callbacks.EarlyStopping)]
    if averages_weights(network) and any(one.restore_best_weights for one in stops):
        raise UnknownModel(
            "train.early_stopping.restore_best: the optimizer averages the weights (use_ema), and"
            " the best epoch's would replace the averages; set restore_best or use_ema to false"
        )


def averages_weights(network: keras.Model) -> bool:
    optimizer = network.optimizer
    return bool(getattr(getattr(optimizer, "inner_optimizer", optimizer), "use_ema", False))


def check_rate(network: keras.Model, callbacks: Callbacks) -> None:
    """Refuse callbacks that set the learning rate if a schedule computes it."""
    optimizers = getattr(network.optimizer, "optimizers", [network.optimizer])
    if all(isinstance(getattr(one, "learning_rate", None), keras.Variable) for one in optimizers):
        return
    for one in callbacks:
        if isinstance(one, RATE_SETTERS):
            raise UnknownModel(
                f"train.callbacks: {type(one).__name__} sets the rate, which a schedule computes;"
                " set train.schedule to constant and leave out train.warm_up_epochs"
            )
