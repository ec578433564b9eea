"""Stage 5, train: train the model through one configuration's input pipeline and record everything.

Checkpoints lie in runs/NAME/.checkpoint until the training is complete; an interrupted training of the same work goes on
from the last one. Results are written to files first, then to MLflow.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import mlflow.tensorflow
import numpy as np
import tensorflow as tf
from mlflow.data.numpy_dataset import from_numpy
from mlflow.models import ModelSignature
from mlflow.types.schema import Schema, TensorSpec

from tasks.assembly import input_pipeline, open_inputs
from tasks.checkpoints import EPOCH_COLUMNS, FOLDER, Progress, resumable_run
from tasks.evidence.hardware import Sampler, Usage, fingerprint, visible_gpus
from tasks.evidence.steps import StepTimer
from tasks.evidence.tracking import Identity, Recorder
from tasks.files import atomic_file, digest_json, read_json, write_json
from tasks.models import Models, build_models, compile_model
from tasks.params import Params
from tasks.pipelines.dataset import InputPipeline
from tasks.progress import say
from tasks.settings import TrainSettings
from tasks.stage import Layout, pipeline_door


@dataclass(frozen=True, kw_only=True)
class Feeds:
    """The input pipelines of one configuration for the three splits; `test` is None where there is none."""

    train: InputPipeline
    validation: InputPipeline
    test: InputPipeline | None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training gave: one row per epoch, timing, usage and the final test metrics."""

    rows: list[dict[str, float]]
    result: dict[str, Any]
    usage: Usage


def train(models: Models, feeds: Feeds, out: Path, *, settings: TrainSettings, work: str, recorder: Recorder) -> Trained:
    """Train, checkpointing into `out`/.checkpoint under the key `work`, and evaluate on the held-out splits.

    `work` identifies data, configuration, model and settings: a checkpoint of other work is thrown away.
    """
    trainable = models.whole if feeds.train.plan.device_ops else models.network
    compile_model(trainable, settings, steps=feeds.train.steps)
    progress = Progress(trainable, feeds.train, out, work, settings, recorder)
    timer = StepTimer(feeds.train.steps, settings.steps_per_execution)
    done = progress.restore()
    if done:
        say(f"train: going on after epoch {done} of an interrupted training")
    data = feeds.train.dataset(first_step=done * feeds.train.steps, epochs=settings.epochs)
    with Sampler() as sampler:
        trainable.fit(
            data,
            # A plan that gathers is one sequence over all epochs, so the next epoch's first batch is ready in time.
            steps_per_epoch=feeds.train.steps if feeds.train.plan.gathers else None,
            initial_epoch=done,
            epochs=settings.epochs,
            validation_data=feeds.validation.dataset(),
            callbacks=[timer, progress.callback(timer)],
            verbose=0,
            shuffle=False,
        )
    usage = sampler.measured
    passed = feeds.train.examples * max(1, settings.epochs - done)
    result: dict[str, Any] = {"train": {name: value for name, value in progress.rows[-1].items() if name != "epoch"}}
    if feeds.test is not None:
        loss, accuracy = trainable.evaluate(feeds.test.dataset(), verbose=0)
        result["test"] = {"loss": loss, "accuracy": accuracy}
    if timer.epochs:
        rates = timer.examples_per_s(feeds.train.examples)
        warm = rates[1:] or rates
        result["throughput"] = {"train_examples_per_s": float(np.median(warm)), "cold_examples_per_s": rates[0]}
        result["step"] = asdict(timer.step_times())
    result["cpu_seconds_per_1k_examples"] = usage.cpu_s / passed * 1000
    result["usage"] = asdict(usage)
    return Trained(rows=progress.rows, result=result, usage=usage)


def save_model(model: keras.Model, path: Path) -> None:
    """Save a model in Keras' own format, atomically."""
    with atomic_file(path) as temporary:
        named = temporary.with_suffix(".keras")  # Keras insists on the suffix
        model.save(named)
        named.rename(temporary)


def write_history(path: Path, rows: list[dict[str, float]]) -> None:
    """Write one line per epoch."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, EPOCH_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def metrics_of(trained: Trained, built: Mapping[str, Any]) -> dict[str, float | None]:
    """Everything that build and train measured, under its MLflow name."""
    result, usage = trained.result, trained.usage
    throughput, step, test, alone = result.get("throughput", {}), result.get("step", {}), result.get("test", {}), built["throughput"]
    return {
        "throughput/train_examples_per_s": throughput.get("train_examples_per_s"),
        "throughput/input_examples_per_s": alone["input_examples_per_s"],
        "input/first_batch_s": alone["first_batch_s"],
        "input/epoch_gap_s": alone["epoch_gap_s"],
        **{f"step/{name}": step.get(name) for name in ("ms_p50", "ms_p95", "ms_p99")},
        "test/loss": test.get("loss"),
        "test/accuracy": test.get("accuracy"),
        "cpu/seconds_per_1k_examples": result["cpu_seconds_per_1k_examples"],
        "memory/rss_mb_max": usage.rss_mb_max,
        "disk/read_mb": usage.disk_read_mb,
        "gpu/utilization_pct_mean": usage.gpu_utilization_pct_mean,
        "gpu/utilization_pct_p10": usage.gpu_utilization_pct_p10,
        "gpu/memory_mb_max": usage.gpu_memory_mb_max,
        "gpu/power_w_mean": usage.gpu_power_w_mean,
    }


def log_model(recorder: Recorder, whole: keras.Model) -> None:
    """Log the whole model (uint8 images in, logits out) with its signature; requirements are given, not guessed."""
    shape, classes = whole.input_shape[1:], whole.output_shape[-1]
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *shape))]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1, classes))]),
    )
    needs = [f"tensorflow=={tf.__version__}", f"keras=={keras.__version__}"]
    recorder.call(lambda: mlflow.tensorflow.log_model(whole, name="model", signature=signature, pip_requirements=needs))


def describe(recorder: Recorder, params: Params, name: str, *, data_digest: str, pipeline: InputPipeline) -> None:
    """Log the resolved configuration, the data set and, where it is so, the absence of a GPU."""
    config = params.pipelines[name].model_dump()
    ops = {section: [op.identity for op in getattr(params, section)] for section in ("preprocess", "augment", "finish")}
    sections = {section: getattr(params, section).model_dump() for section in ("data", "shard", "model", "train")}
    recorder.params({"pipeline": config, **ops, **sections, "batch_size": params.batch_size, "plan": str(pipeline.plan)})
    recorder.params({"machine": fingerprint()})
    source = from_numpy(np.empty((0,)), name=params.data.source, digest=data_digest[:32])
    recorder.call(lambda: mlflow.log_input(source, context="training"))


def main() -> None:
    """Train the model through one configuration's input pipeline."""
    with pipeline_door(main) as (params, name):
        keras.utils.set_random_seed(params.train.seed)
        if params.train.deterministic:
            tf.config.experimental.enable_op_determinism()
        if params.train.mixed_precision:
            keras.mixed_precision.set_global_policy("mixed_float16" if visible_gpus()[0] else "mixed_bfloat16")
        out, stored = Layout().run(name), open_inputs(params, Layout())
        splits = {shard.split for shard in stored.shards.shards}
        feeds = Feeds(
            train=input_pipeline(params, name, stored, split="train", purpose="train"),
            validation=input_pipeline(params, name, stored, split="validation", purpose="evaluate"),
            test=input_pipeline(params, name, stored, split="test", purpose="evaluate") if "test" in splits else None,
        )
        models = build_models(params.model, input_shape=stored.image_shape, classes=len(stored.shards.classes), finish=params.finish)
        work = digest_json(
            {
                "data": stored.shards.data_digest,
                "plan": str(feeds.train.plan),
                "config": params.pipelines[name].model_dump(),
                "model": params.model.model_dump(),
                "train": params.train.model_dump(),
            }
        )
        identity = Identity(data_set=params.data.source, pipeline=name, data_digest=stored.shards.data_digest)
        say(f"train {name}: {feeds.train.plan}; {models.network.count_params():,} weights, {feeds.train.examples:,} examples")
        if visible_gpus()[1]:
            say(f"  {visible_gpus()[1]}")
        with Recorder(identity, run_id=resumable_run(out, work)) as recorder:
            describe(recorder, params, name, data_digest=stored.shards.data_digest, pipeline=feeds.train)
            trained = train(models, feeds, out, settings=params.train, work=work, recorder=recorder)
            save_model(models.whole, out / "model.keras")
            write_history(out / "history.csv", trained.rows)
            write_json(out / "train.json", trained.result)
            recorder.metrics(metrics_of(trained, read_json(out / "input.json")))
            for file in ("plan.json", "input.json", "history.csv", "train.json"):
                recorder.artifact(out / file)
            log_model(recorder, models.whole)
        write_json(out / "run.json", {"mlflow_run_id": recorder.run_id, "sent": recorder.sent})
        shutil.rmtree(out / FOLDER, ignore_errors=True)
        test = trained.result.get("test", {})
        throughput = trained.result.get("throughput", {}).get("train_examples_per_s", float("nan"))
        say(f"  {throughput:,.0f} examples/s" + (f", test accuracy {test['accuracy']:.4f}" if test else ""))


if __name__ == "__main__":
    main()
