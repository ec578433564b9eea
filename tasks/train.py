"""The train stage: train the model through one configuration's input pipeline.

Checkpoints are in runs/NAME/.checkpoint until the training is complete; an interrupted training of
the same work resumes from the last one. Results are written to files first, then to MLflow.
"""

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from tasks.earlier import check_identity
from tasks.own_code import find_needs
from throughline.assembly.evaluation import complete_metrics, write_evaluation
from throughline.assembly.fingerprint import NO_PART, layer_modules, training_fingerprint
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.inputs import (
    explain_read_errors,
    make_series_window,
    open_input_service,
    open_inputs,
)
from throughline.assembly.model import build_models_for, configure_process
from throughline.assembly.processes import meet_processes
from throughline.assembly.receipts import make_receipt
from throughline.assembly.step_batch import open_training_batches
from throughline.assembly.training import TrainingOutcome, open_split_pipelines, train
from throughline.config.cli import pipeline_stage_cli
from throughline.config.params import OP_SECTIONS, Params
from throughline.data.glance import read_problems
from throughline.measurement.gpus import visible_gpus
from throughline.measurement.hardware import describe_machine
from throughline.models.builders import Models
from throughline.models.inference import save_trained_model
from throughline.models.model_files import check_savable
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.results.base import name_machine, to_json
from throughline.results.evaluation import Evaluation
from throughline.results.receipt import LOSSES, Receipt
from throughline.results.train import (
    RunRecord,
    TrainResult,
    describe_weakness,
    train_metrics,
    validation_metrics,
    write_history,
)
from throughline.settings import TrainSettings
from throughline.shared.file_lock import hold_outputs
from throughline.shared.files import atomic_files
from throughline.shared.layout import MODEL_FILE, Layout
from throughline.shared.progress import echo, echo_problem, echo_result
from throughline.shared.termination import exit_on_sigterm
from throughline.tracking.experiments import make_run_key
from throughline.tracking.receipts import RECEIPT_TAG
from throughline.tracking.recorder import Recorder
from throughline.training.checkpoint_store import CheckpointStore
from throughline.training.checkpoints import CHECKPOINT_FOLDER, CheckpointCallback
from throughline.training.compiling import describe_own_compile
from throughline.training.processes import run_one_of_several
from throughline.training.replicas import Replicas, count_training_gpus

LEAST_STEPS = 3  # per epoch; with fewer, a batch is about as large as the split


def log_inputs(recorder: Recorder, params: Params, name: str, pipeline: InputPipeline) -> None:
    """Log the resolved configuration, the dataset and the machine.

    The number of processes is a tag: an interrupted training may resume with another number, and
    MLflow's parameters never change.
    """
    sections = ("data", "shard", "model", "train")
    recorder.log_params(
        {
            "pipeline": params.pipelines[name].model_dump(),
            **{part: [op.identity for op in getattr(params, part)] for part in OP_SECTIONS},
            **{part: getattr(params, part).model_dump(exclude=NO_PART) for part in sections},
            "batch_size": params.batch_size,
            "plan": str(pipeline.plan),
        }
    )
    recorder.log_params({"machine": describe_machine()})
    worker = pipeline.worker
    recorder.set_tags({"processes": str(worker.count), "batch_multiple": str(worker.multiple)})
    recorder.log_input(params.data.source, pipeline.data.shards.data_digest)


def log_results(recorder: Recorder, out: Path, new: Path, result: TrainResult, epochs: int) -> None:
    """Log the result after `epochs` epochs, and files: of earlier stages in `out`, and of `new`."""
    recorder.log_metrics(train_metrics(result))
    recorder.log_metrics(validation_metrics(result), step=epochs)
    ours = [new / name for name in ("history.csv", "train.json", Receipt.FILE, LOSSES)]
    for file in (out / "plan.json", out / "input.json", *ours, *Layout().at_a_glance):
        recorder.log_artifact(file)


def summarize(result: TrainResult, *, stopped: str = "") -> str:
    """Return one line: the rate of warm epochs, the metric that people judge by, an early stop."""
    rate = "no epoch timed"
    if result.throughput:
        doubt = f" ({result.epochs_doubt})" if result.epochs_doubt else ""
        rate = f"{result.throughput.train_examples_per_s:,.0f} examples/s{doubt}"
    judged = [name for name in (result.metric, "perplexity") if name in result.test]
    shown = [f"test {name} {result.test[name]:.4f}" for name in judged]
    if not shown:
        value = result.last_epoch[f"val_{result.metric}"]
        shown = [f"validation {result.metric} {value:.4f}"]
    return ", ".join(filter(None, [rate, *shown, stopped]))


def find_few_steps(
    examples: int, batch_size: int, *, steps_per_epoch: int, epochs: int, what: str = "examples"
) -> str | None:
    """Return a warning if an epoch has so few batches that the model hardly learns; else None."""
    if steps_per_epoch >= LEAST_STEPS:
        return None
    batches = "1 batch" if steps_per_epoch == 1 else f"{steps_per_epoch} batches"
    return (
        f"{examples:,} training {what} are {batches} of at most {batch_size:,}: the model learns in"
        f" {steps_per_epoch * epochs:,} train steps in all; for more steps, lower batch_size or"
        " raise train.epochs"
    )


def describe_stop(training: TrainingOutcome, settings: TrainSettings) -> str:
    """Say how a training ended before its last step; empty if it ran to the end."""
    if not training.ended_by:
        return ""
    if len(training.rows) == settings.epochs:
        return "stopped early, within its last epoch"
    return f"stopped early after {len(training.rows)} of {settings.epochs} epochs"


def find_weakness(
    result: TrainResult,
    *,
    steps: int,
    stopped: str = "",
    ended_by: str = "train.early_stopping",
) -> str | None:
    """Say why the trained model is useless and what to do; None if it is useful.

    `stopped` says how the training ended early, which the key `ended_by` of params.yaml decided.
    """
    more = "for more steps, raise train.epochs or lower batch_size"
    if result.metric != "mae" and result.judged == 0:
        more = f"no prediction is right, so look at the labels of the splits: {Layout().glance}"
    elif stopped:
        more = f"it {stopped}, which {ended_by} decides"
    weakness = describe_weakness(result)
    return weakness and f"{weakness}, after {steps:,} train steps; {more}"


def describe_idle_gpus(*, visible: int, used: int) -> str | None:
    """Say what to do if GPUs are visible but TensorFlow uses none; None otherwise."""
    if not visible or used:
        return None
    return (
        f"CUDA's driver shows {visible} GPU{'s' * (visible > 1)}, but TensorFlow does not find"
        " CUDA's libraries: the model is trained on the CPU. Install them with `make setup GPU=1`"
    )


def echo_start(name: str, params: Params, training: InputPipeline, models: Models) -> None:
    """Print the plan and the model, and warn about settings that may not be intended."""
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
    if training.data.snapshot.vocabulary:
        echo(
            "  model.keras takes token numbers (int32, padded with 0), not strings; for a model of"
            f" strings: `python -m tasks.export --pipeline {name} --out FOLDER`"
        )
    gpus, reason = visible_gpus()
    if reason:
        echo(f"  {reason}")
    idle = describe_idle_gpus(visible=len(gpus), used=count_training_gpus())
    of_data = [f"data: {problem}" for problem in read_problems(Layout().manifest)]
    for problem in filter(None, [few if not models.emulation else None, idle, *of_data]):
        echo_problem(problem)


def echo_end(
    training: TrainingOutcome, params: Params, models: Models, evaluation: Evaluation
) -> None:
    stopped = describe_stop(training, params.train)
    weakness = find_weakness(
        training.result, steps=training.steps, stopped=stopped, ended_by=training.ended_by
    )
    if weakness and not models.emulation:
        echo_problem(weakness)
    echo_result(summarize(training.result, stopped=stopped))
    for target, error in evaluation.mae_by_target.items():
        echo(f"  {evaluation.split} mae of {target}: {error:.4g}")


def open_checkpoints(
    params: Params, name: str, data: PreparedData, replicas: Replicas
) -> CheckpointStore:
    """Return this training's checkpoints, after a check that all processes train the same."""
    fingerprint = training_fingerprint(params, name, data, needs=find_needs(Layout().root, "train"))
    same = {
        "batch_multiple": replicas.worker.multiple,
        "checkpoint_every": params.train.checkpoint_every,
    }
    replicas.check_same(
        fingerprint | same, remedy="all hosts need the same parameters, code, data and versions"
    )
    return CheckpointStore(Layout().results(name) / CHECKPOINT_FOLDER, fingerprint)


def main() -> None:
    """Train the model through one configuration's input pipeline."""
    with pipeline_stage_cli(main) as context, ExitStack() as service, ExitStack() as alone:
        check_identity()
        params, name = context.params, context.name
        address = service.enter_context(open_input_service(params.pipelines[name]))
        replicas = meet_processes(params, name, ["tasks.train"])
        if replicas is None:
            return
        configure_process(params.train, replicas.worker)
        out, data = Layout().results(name), open_inputs(params, Layout())
        pipelines = open_split_pipelines(params, name, data, address=address)
        with replicas.scope():
            models = build_models_for(params, data)
        store = open_checkpoints(params, name, data, replicas)
        settings = params.train
        if not replicas.is_chief:
            checkpoints = CheckpointCallback(pipelines.train, store, settings, None)
            train(models, pipelines, checkpoints, settings=settings, replicas=replicas)
            service.close()
            replicas.wait_for_chief()
            return
        alone.enter_context(hold_outputs(out, f"training {name}"))
        run_key = make_run_key(
            Layout().manifest,
            params.data.path,
            pipeline=name,
            window=params.window,
            data_digest=data.shards.data_digest,
        )
        echo_start(name, params, pipelines.train, models)
        modules = sorted(layer_modules(params))
        needs = check_savable(models.full_model, modules) if modules else None
        if needs and (hint := needs.hint()):
            echo(f"  {hint}")
        with (
            explain_read_errors(data, shards=not pipelines.train.plan.reads_whole_snapshot),
            atomic_files(out) as new,
            Recorder(run_key, **store.run) as recorder,
        ):
            log_inputs(recorder, params, name, pipelines.train)
            window = make_series_window(params, data)
            if models.network.compiled:
                echo_problem(describe_own_compile(settings))
            training = train(
                models,
                pipelines,
                CheckpointCallback(pipelines.train, store, settings, recorder),
                settings=settings,
                targets=window.targets if window else None,
                replicas=replicas,
            )
            service.close()
            here = replace(training.result, machine=name_machine(describe_machine()))
            result = complete_metrics(here, models, params, name, data)
            spec, ops = (
                make_inference_spec(params, name, data, needs),
                inference_ops(params, name, data),
            )
            save_trained_model(models.full_model, new / MODEL_FILE, spec, ops)
            write_history(new, training.rows)
            result.write(new)
            np.save(new / LOSSES, [] if models.emulation else training.losses)
            rebuilt = open_training_batches(params, name, data, multiple=replicas.worker.multiple)
            receipt = make_receipt(
                rebuilt, params, name, store.fingerprint, steps=training.steps, folder=new
            )
            receipt.write(new)
            recorder.set_tags({RECEIPT_TAG: json.dumps(to_json(receipt))})
            log_results(recorder, out, new, result, len(training.rows))
            evaluation = write_evaluation(models, params, name, data, new / Evaluation.FOLDER)
            recorder.log_metrics(evaluation.metrics)
            recorder.log_artifact(new / Evaluation.FOLDER, folder=Evaluation.FOLDER)
            recorder.log_model(new / MODEL_FILE, needs.objects if needs else {})
        RunRecord(mlflow_run_id=recorder.run_id, unsent=recorder.unsent).write(out)
        shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
        echo_end(replace(training, result=result), params, models, evaluation)
        replicas.wait_for_chief()


if __name__ == "__main__":
    exit_on_sigterm()  # so that MLflow learns of the end, or the run is kept
    run_one_of_several(main)
