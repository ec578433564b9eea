"""The train stage: train the model through one configuration's input pipeline and record all.

Checkpoints are in runs/NAME/.checkpoint until the training is complete; an interrupted training of
the same work resumes from the last one. Results are written to files first, then to MLflow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.assembly.evaluation import complete_metrics, write_evaluation
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.inputs import (
    explain_read_errors,
    make_series_window,
    open_input_pipeline,
    open_input_service,
    open_inputs,
)
from throughline.assembly.model import build_models_for
from throughline.config.cli import pipeline_stage_cli
from throughline.config.params import Params
from throughline.config.params_checks import find_monitor_problem
from throughline.measurement.gpus import used_gpus, visible_gpus
from throughline.measurement.hardware import UsageMonitor, describe_machine
from throughline.measurement.held_out import describe_held_out, describe_next_tokens
from throughline.models.inference import save_trained_model
from throughline.models.model_files import check_savable
from throughline.models.models import Models, Target
from throughline.models.transformers import TransformerEncoder
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.ops import PROGRAM
from throughline.plan.steps import TokenWindow
from throughline.plan.training_workers import training_worker_from_tf_config
from throughline.results.build import BuildResult
from throughline.results.evaluation import Evaluation
from throughline.results.train import (
    RunRecord,
    TrainResult,
    TrainThroughput,
    describe_weakness,
    train_metrics,
    write_history,
)
from throughline.settings import TrainSettings
from throughline.shared.errors import ImpossiblePlan, UnknownModel
from throughline.shared.files import digest_file, digest_json
from throughline.shared.layout import MODEL_FILE, Layout
from throughline.shared.program import digest_code
from throughline.shared.progress import echo, echo_problem, echo_result
from throughline.tracking.experiments import make_run_key
from throughline.tracking.recorder import Recorder
from throughline.training.callbacks import find_best_epoch, make_callbacks
from throughline.training.checkpoint_store import CheckpointStore
from throughline.training.checkpoints import CHECKPOINT_FOLDER, CheckpointCallback
from throughline.training.compiling import describe_own_compile
from throughline.training.fit import Position, Schedule, as_numbers, fit
from throughline.training.step_model import Feed, find_network, make_step_model
from throughline.training.train_function import TrainFunction

LEAST_STEPS = 3  # in an epoch; below, the batches are about as large as the split


@dataclass(frozen=True, kw_only=True)
class SplitPipelines:
    """The input pipelines of one configuration for the three splits; `test` is None where there is
    none.
    """

    train: InputPipeline
    validation: InputPipeline
    test: InputPipeline | None


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """What a training gave: one row per epoch, and the result of them all."""

    rows: list[dict[str, float]]
    result: TrainResult


def train(
    models: Models,
    pipelines: SplitPipelines,
    checkpoints: CheckpointCallback,
    *,
    settings: TrainSettings,
    targets: Sequence[int] | None = None,
) -> TrainingOutcome:
    """Train, resuming where `checkpoints` say that an interrupted training was, and evaluate on the
    held-out splits. `targets` are the columns of a series that are predicted.
    """
    plan = pipelines.train.plan
    feed = Feed.of(pipelines.train, settings)
    model = make_step_model(models, settings, feed)
    network, callbacks = find_network(model), make_callbacks(settings)
    validation = pipelines.validation.dataset()
    # Makes the variables of metrics, which may continue from their values, and shows their names.
    first = model.evaluate(validation.take(1), verbose=0, return_dict=True)  # pyright: ignore[reportArgumentType]
    check_metrics(as_numbers(first), settings, models.target)
    check_direction(network, settings)
    start, train_function = checkpoints.restore(network), TrainFunction(model)
    if start != Position():
        echo_problem(
            f"resuming interrupted training at epoch {start.epoch + 1}, step {start.step:,}"
        )
    with UsageMonitor(used_gpus(device_names(network)), paused=True) as monitor:
        checkpoints.attach(train_function, monitor, callbacks)
        fit(
            train_function,
            open_batches(pipelines.train, start, epochs=settings.epochs),
            Schedule(steps_per_epoch=feed.steps_per_epoch, epochs=settings.epochs, start=start),
            validation=validation,
            callbacks=[*callbacks, checkpoints],
        )
    usage, timer = monitor.measured, checkpoints.timer
    test = (
        {}
        if pipelines.test is None
        else as_numbers(model.evaluate(pipelines.test.dataset(), verbose=0, return_dict=True))  # pyright: ignore[reportArgumentType]
    )
    best = find_best_epoch(callbacks)
    kept = checkpoints.rows[-1 if best is None else best]
    examples_per_step = pipelines.train.examples / pipelines.train.steps_per_epoch
    rates = [rate * examples_per_step for rate in timer.rates]
    measured = checkpoints.measured_steps * examples_per_step
    result = TrainResult(
        metric=models.target.metric,
        held_out=(
            describe_next_tokens(pipelines.train.data, plan.window)
            if isinstance(plan.window, TokenWindow)
            else describe_held_out(pipelines.train.data, targets=targets)
        ),
        last_epoch=with_perplexity(
            {name: value for name, value in kept.items() if name != "epoch"}, models.target
        ),
        test=with_perplexity(test, models.target),
        throughput=(
            TrainThroughput(
                train_examples_per_s=float(np.median(rates[1:] or rates)),
                cold_examples_per_s=rates[0],
            )
            if rates
            else None
        ),
        step=timer.step_times() if rates else None,
        cpu_seconds_per_1k_examples=usage.cpu_s / measured * 1000 if measured else None,
        usage=usage,
    )
    return TrainingOutcome(rows=checkpoints.rows, result=result)


def with_perplexity(values: Mapping[str, float], target: Target) -> dict[str, float]:
    """Values by their names and, of next tokens, the perplexity for each loss among them."""
    losses = [name for name in values if name.endswith("loss") and target.kind == "next_token"]
    with np.errstate(over="ignore"):  # of a training that has gone astray it is infinite
        return {
            **values,
            **{
                f"{name.removesuffix('loss')}perplexity": float(np.exp(values[name]))
                for name in losses
            },
        }


def open_batches(pipeline: InputPipeline, start: Position, *, epochs: int) -> tf.data.Dataset:
    """The batches of a training from a position to its end: one sequence over all epochs."""
    first = start.epoch * pipeline.steps_per_epoch + start.step
    if pipeline.plan.gathers_on_device:
        return tf.data.Dataset.range(first, epochs * pipeline.steps_per_epoch)
    return pipeline.dataset(first_step=first, epochs=epochs)


def check_metrics(first: Mapping[str, float], settings: TrainSettings, target: Target) -> None:
    """Check, before the first step, what is to be watched against the metrics of a first batch.

    Raises:
      UnknownModel: there is no such metric.
    """
    stopping = settings.early_stopping
    if stopping and (problem := find_monitor_problem(stopping.monitor, first)):
        raise UnknownModel(problem)
    if target.kind == "next_token" and target.metric not in first:
        raise UnknownModel(
            f"the model's builder compiles it without {target.metric}, by which models of next"
            f' tokens are compared; add metrics=["{target.metric}"]'
        )


def check_direction(network: keras.Model, settings: TrainSettings) -> None:
    """Check that early stopping knows what is better.

    Raises:
      UnknownModel: Keras does not know it of this metric.
    """
    stopping = settings.early_stopping
    name = stopping.monitor.removeprefix("val_") if stopping else "loss"
    metrics = [one for each in network.metrics for one in getattr(each, "metrics", [each])]
    known = name == "loss" or any(
        one.name == name and hasattr(one, "_direction") for one in metrics
    )
    if stopping and stopping.mode == "auto" and not known:
        raise UnknownModel(
            f"train.early_stopping.mode: Keras does not know whether {stopping.monitor} is better"
            " when it is higher; set max or min"
        )


def device_names(model: keras.Model) -> set[str]:
    """Where TensorFlow has put the weights of a model, and therefore trains it."""
    return {str(variable.value.device) for variable in model.variables}


def log_inputs(
    recorder: Recorder, params: Params, name: str, *, data_digest: str, pipeline: InputPipeline
) -> None:
    """Log the resolved configuration, the dataset and, where it is so, the absence of a GPU."""
    config = params.pipelines[name].model_dump()
    ops = {
        section: [op.identity for op in getattr(params, section)]
        for section in ("preprocess", "augment", "postprocess")
    }
    sections = {
        section: getattr(params, section).model_dump()
        for section in ("data", "shard", "model", "train")
    }
    recorder.log_params(
        {
            "pipeline": config,
            **ops,
            **sections,
            "batch_size": params.batch_size,
            "plan": str(pipeline.plan),
        }
    )
    recorder.log_params({"machine": describe_machine()})
    recorder.log_input(params.data.source, data_digest)


def open_split_pipelines(
    params: Params, name: str, data: PreparedData, *, address: str
) -> SplitPipelines:
    """Open the configuration for training, and the held-out splits in order."""

    def evaluated(split: str) -> InputPipeline:
        return open_input_pipeline(params, name, data, split=split, purpose="evaluate")

    return SplitPipelines(
        train=open_input_pipeline(
            params, name, data, split="train", purpose="train", address=address
        ),
        validation=evaluated("validation"),
        test=evaluated("test") if "test" in data.shards.splits else None,
    )


def training_fingerprint(params: Params, name: str, data: PreparedData) -> dict[str, str]:
    """What a training is, by its parts, each as a digest: a checkpoint of which any part differs is
    not resumed from.

    How often checkpoints are kept is no part of it. `code` is that of the stage, of the model and
    what it is trained with, and of ops, with all that they import from the project.
    """
    ops = [
        [op.identity for op in data.bind_to_data(getattr(params, section))]
        for section in ("augment", "postprocess")
    ]
    parts = {
        "data": [data.shards.data_digest, data.snapshot.key],
        "ops": ops,
        "window": params.window.model_dump(),
        "pipeline": params.pipelines[name].model_dump(),
        "batch_size": params.batch_size,
        "model": [
            params.model.model_dump(),
            *(
                digest_file(Path(file))
                for file in (params.model.from_file, params.model.weights)
                if file
            ),
        ],
        "train": params.train.model_dump(exclude={"checkpoint_every"}),
        "code": digest_code("train", *sorted(user_modules(params))),
        "versions": [keras.__version__, tf.__version__],
    }
    return {part: digest_json(value) for part, value in parts.items()}


def user_modules(params: Params) -> set[str]:
    """Modules that are not the program's: of the model, of what it is trained with, and of ops."""
    train = params.train
    named = [params.model.name, train.schedule, train.optimizer, train.loss]
    named += [*train.metrics, *train.callbacks]
    paths = [one if isinstance(one, str) else next(iter(one)) for one in named]
    own = {path.partition(":")[0] for path in paths if ":" in path}
    ops = {
        type(op).__module__
        for section in ("preprocess", "augment", "postprocess")
        for op in getattr(params, section)
    }
    return own | {module for module in ops if module.partition(".")[0] not in PROGRAM}


def layer_modules(params: Params) -> set[str]:
    """The modules that may hold layers which Keras does not know by itself: the user's, and that of
    the built-in transformers.
    """
    transformer = params.model.name in ("transformer_encoder", "transformer_decoder")
    return user_modules(params) | ({TransformerEncoder.__module__} if transformer else set())


def configure_process(settings: TrainSettings) -> None:
    """Seeds, determinism and precision of this process."""
    keras.utils.set_random_seed(settings.seed)
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    if settings.mixed_precision:
        keras.mixed_precision.set_global_policy(
            "mixed_float16" if visible_gpus()[0] else "mixed_bfloat16"
        )


def summarize(result: TrainResult) -> str:
    """The result in one line: the rate of warm epochs, and the metric by which people judge it."""
    rate = (
        f"{result.throughput.train_examples_per_s:,.0f} examples/s"
        if result.throughput
        else "no epoch timed"
    )
    figures = {
        f"test {name}": result.test[name]
        for name in (result.metric, "perplexity")
        if name in result.test
    } or {f"validation {result.metric}": result.last_epoch[f"val_{result.metric}"]}
    return ", ".join([rate, *(f"{name} {value:.4f}" for name, value in figures.items())])


def find_few_steps(
    examples: int, batch_size: int, *, steps_per_epoch: int, epochs: int, what: str = "examples"
) -> str | None:
    """What to say where an epoch is hardly a training: so few batches; None where it is."""
    if steps_per_epoch >= LEAST_STEPS:
        return None
    batches = "1 batch" if steps_per_epoch == 1 else f"{steps_per_epoch} batches"
    return (
        f"{examples:,} training {what} are {batches} of at most {batch_size:,}: the model learns in"
        f" {steps_per_epoch * epochs:,} train steps in all; for more lower batch_size or raise"
        " train.epochs"
    )


def find_weakness(result: TrainResult, *, steps: int) -> str | None:
    """Why a model of so many train `steps` is of no use, and what to do; None where it is."""
    weakness = describe_weakness(result)
    return weakness and (
        f"{weakness}, after {steps:,} train steps; for more of them raise train.epochs or lower"
        " batch_size"
    )


def echo_start(name: str, params: Params, training: InputPipeline, models: Models) -> None:
    """Say what is trained, and what about it may not be meant."""
    what = "windows" if training.plan.window else "examples"
    echo(
        f"train {name}: {training.plan}; {models.network.count_params():,} weights,"
        f" {training.examples:,} {what}"
    )
    few = find_few_steps(
        training.examples,
        training.batch_size,
        steps_per_epoch=training.steps_per_epoch,
        epochs=params.train.epochs,
        what=what,
    )
    if few and not models.emulation:
        echo_problem(few)
    if training.data.snapshot.vocabulary:
        echo(
            "  model.keras takes token numbers, int32 and padded with 0, not strings; one that"
            f" takes these: `python -m tasks.export --pipeline {name} --out FOLDER`"
        )
    if visible_gpus()[1]:
        echo(f"  {visible_gpus()[1]}")


def main() -> None:
    """Train the model through one configuration's input pipeline."""
    with (
        pipeline_stage_cli(main) as context,
        open_input_service(context.params.pipelines[context.name]) as address,
    ):
        params, name = context.params, context.name
        if (workers := training_worker_from_tf_config(os.environ).count) > 1:
            raise ImpossiblePlan(
                f"TF_CONFIG names {workers} workers; this stage is a single one, which would see"
                " its slice of each batch alone: unset TF_CONFIG, or train with a loop of your own"
                " (docs/training.md, several workers)"
            )
        configure_process(params.train)
        out, data = Layout().results(name), open_inputs(params, Layout())
        pipelines = open_split_pipelines(params, name, data, address=address)
        models = build_models_for(params, data)
        checkpoint_folder = out / CHECKPOINT_FOLDER
        store = CheckpointStore(checkpoint_folder, training_fingerprint(params, name, data))
        run_key = make_run_key(
            Layout().manifest,
            params.data.path,
            pipeline=name,
            window=params.window,
            data_digest=data.shards.data_digest,
        )
        echo_start(name, params, pipelines.train, models)
        needs = None
        if modules := layer_modules(params):
            needs = check_savable(models.full_model, sorted(modules))
            if needs.hint():
                echo(f"  {needs.hint()}")
        with explain_read_errors(data), Recorder(run_key, run_id=store.run_id) as recorder:
            log_inputs(
                recorder,
                params,
                name,
                data_digest=data.shards.data_digest,
                pipeline=pipelines.train,
            )
            window = make_series_window(params, data)
            if models.network.compiled:
                echo_problem(describe_own_compile(params.train))
            training = train(
                models,
                pipelines,
                CheckpointCallback(pipelines.train, store, params.train, recorder),
                settings=params.train,
                targets=window.targets if window else None,
            )
            result = complete_metrics(training.result, models, params, data)
            save_trained_model(
                models.full_model,
                out / MODEL_FILE,
                make_inference_spec(params, name, data, needs),
                inference_ops(params, name, data),
            )
            write_history(out, training.rows)
            result.write(out)
            recorder.log_metrics(train_metrics(BuildResult.read(out), result))
            for file in ("plan.json", "input.json", "history.csv", "train.json"):
                recorder.log_artifact(out / file)
            evaluation = write_evaluation(models, params, data, Layout(), out / Evaluation.FOLDER)
            recorder.log_metrics(evaluation.metrics)
            recorder.log_artifact(out / Evaluation.FOLDER, folder=Evaluation.FOLDER)
            recorder.log_model(out / MODEL_FILE, needs.objects if needs else {})
        RunRecord(mlflow_run_id=recorder.run_id, sent=recorder.sent).write(out)
        shutil.rmtree(checkpoint_folder, ignore_errors=True)
        steps = len(training.rows) * pipelines.train.steps_per_epoch
        weakness = find_weakness(result, steps=steps)
        if weakness and not models.emulation:
            echo_problem(weakness)
        echo_result(summarize(result))
        for target, error in evaluation.mae_by_target.items():
            echo(f"  {evaluation.split} mae of {target}: {error:.4g}")


if __name__ == "__main__":
    main()
