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
import mlflow
import numpy as np
import tensorflow as tf
from mlflow.models import ModelSignature
from mlflow.types.schema import Schema, TensorSpec

from tasks.assembly import input_pipeline, open_inputs
from tasks.evidence.hardware import Sampler, Usage, fingerprint, visible_gpus
from tasks.evidence.steps import StepTimer
from tasks.evidence.tracking import Identity, Recorder
from tasks.files import atomic_file, digest_json, read_json, write_json
from tasks.models import Models, build_models
from tasks.params import Params
from tasks.pipelines.dataset import InputPipeline
from tasks.progress import say
from tasks.settings import TrainSettings
from tasks.stage import Layout, pipeline_door

EPOCH_COLUMNS = ("epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "examples_per_s", "learning_rate")


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
    progress = Progress(trainable, feeds.train, out / ".checkpoint", work, settings, recorder)
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
    result: dict[str, Any] = {"train": {name: value for name, value in progress.rows[-1].items() if name != "epoch"}}
    if feeds.test is not None:
        loss, accuracy = trainable.evaluate(feeds.test.dataset(), verbose=0)
        result["test"] = {"loss": loss, "accuracy": accuracy}
    if timer.epochs:
        rates = timer.examples_per_s(feeds.train.examples)
        warm = rates[1:] or rates
        result["throughput"] = {"train_examples_per_s": float(np.median(warm)), "cold_examples_per_s": rates[0]}
        result["step"] = asdict(timer.step_times())
    assert sampler.usage is not None  # noqa: S101 - set on leaving the block
    return Trained(rows=progress.rows, result=result, usage=sampler.usage)


def compile_model(model: keras.Model, settings: TrainSettings, *, steps: int) -> None:
    """Compile with Adam and cross-entropy on logits, unless the builder has compiled the model itself."""
    if getattr(model, "compiled", False):
        return
    rate: Any = settings.learning_rate
    if settings.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.epochs * steps)
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=settings.jit_compile,
        steps_per_execution=settings.steps_per_execution,
    )


class Progress:
    """Epoch rows and checkpoints of a training that may be interrupted at any instant."""

    def __init__(  # noqa: PLR0913 - everything a resumed training needs
        self, model: keras.Model, pipeline: InputPipeline, folder: Path, work: str, settings: TrainSettings, recorder: Recorder
    ) -> None:
        self.rows: list[dict[str, float]] = []
        self._model, self._pipeline, self._folder, self._work = model, pipeline, folder, work
        self._settings, self._recorder = settings, recorder
        # Every variable by position: weights, optimizer slots, step counter and the state of random layers.
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        self._checkpoint = tf.train.Checkpoint(variables=[getattr(variable, "value", variable) for variable in variables])

    def restore(self) -> int:
        """Load the last checkpoint of the same work and return the number of epochs it has; 0 where there is none."""
        state_file = self._folder / "state.json"
        if not state_file.exists() or (state := read_json(state_file))["work"] != self._work:
            shutil.rmtree(self._folder, ignore_errors=True)
            return 0
        self._checkpoint.read(str(self._folder / state["checkpoint"])).assert_consumed()
        self.rows = state["rows"]
        self._pipeline.epoch.assign(len(self.rows))
        return len(self.rows)

    def callback(self, timer: StepTimer) -> keras.callbacks.Callback:
        """The callback that closes each epoch: row, metrics, checkpoint, and the epoch counter of random ops."""
        return keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self._pipeline.epoch.assign(epoch),
            on_epoch_end=lambda epoch, logs: self._close(epoch, logs or {}, timer),
        )

    def _close(self, epoch: int, logs: Mapping[str, float], timer: StepTimer) -> None:
        values = (
            epoch,
            logs["loss"],
            logs["accuracy"],
            logs["val_loss"],
            logs["val_accuracy"],
            timer.examples_per_s(self._pipeline.examples)[-1],
            float(self._model.optimizer.learning_rate),
        )
        row = dict(zip(EPOCH_COLUMNS, (float(value) for value in values), strict=True)) | {"epoch": epoch}
        self.rows.append(row)
        say(
            f"  epoch {epoch + 1} of {self._settings.epochs}: loss {row['train_loss']:.4f}, accuracy {row['train_accuracy']:.4f}, "
            f"validation accuracy {row['val_accuracy']:.4f}, {row['examples_per_s']:,.0f} examples/s"
        )
        names = {"train_loss": "train/loss", "train_accuracy": "train/accuracy", "val_loss": "val/loss", "val_accuracy": "val/accuracy"}
        self._recorder.metrics({metric: row[name] for name, metric in names.items()}, step=epoch)
        last = epoch + 1 == self._settings.epochs
        if not last and (epoch + 1) % self._settings.checkpoint_every == 0:
            self._save(epoch)

    def _save(self, epoch: int) -> None:
        """Write the checkpoint, then the state that names it: a kill in between leaves the earlier one in force."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"epoch-{epoch:04d}"
        self._checkpoint.write(str(self._folder / name))
        write_json(self._folder / "state.json", {"work": self._work, "checkpoint": name, "rows": self.rows, "run_id": self._recorder.run_id})
        for stale in self._folder.glob("epoch-*"):
            if not stale.name.startswith(name):
                stale.unlink()


def write_history(path: Path, rows: list[dict[str, float]]) -> None:
    """Write one line per epoch."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, EPOCH_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def metrics_of(trained: Trained) -> dict[str, float | None]:
    """The training's metrics under their MLflow names."""
    result, usage = trained.result, trained.usage
    throughput, step, test = result.get("throughput", {}), result.get("step", {}), result.get("test", {})
    examples = sum(1 for _ in trained.rows) or 1
    return {
        "throughput/train_examples_per_s": throughput.get("train_examples_per_s"),
        **{f"step/{name}": step.get(name) for name in ("ms_p50", "ms_p95", "ms_p99")},
        "test/loss": test.get("loss"),
        "test/accuracy": test.get("accuracy"),
        "cpu/seconds_per_1k_examples": result.get("cpu_seconds_per_1k_examples"),
        "memory/rss_mb_max": usage.rss_mb_max,
        "disk/read_mb": usage.disk_read_mb,
        "gpu/utilization_pct_mean": usage.gpu_utilization_pct_mean,
        "gpu/utilization_pct_p10": usage.gpu_utilization_pct_p10,
        "gpu/memory_mb_max": usage.gpu_memory_mb_max,
        "gpu/power_w_mean": usage.gpu_power_w_mean,
        "train/epochs": float(examples),
    }


def resumable_run(out: Path, work: str) -> str | None:
    """The MLflow run of an interrupted training of the same work."""
    state_file = out / ".checkpoint" / "state.json"
    state = read_json(state_file) if state_file.exists() else {}
    return state.get("run_id") if state.get("work") == work else None


def log_model(recorder: Recorder, whole: keras.Model) -> None:
    """Log the whole model (uint8 images in, logits out) with its signature; requirements are given, not guessed."""
    shape, classes = whole.input_shape[1:], whole.output_shape[-1]
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype("uint8"), (-1, *shape), "image")]),
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
    source = mlflow.data.from_numpy(np.empty((0,)), name=params.data.source, digest=data_digest[:32])
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
        shape = next(column.shape for column in stored.snapshot.columns if column.name == "image")
        models = build_models(params.model, input_shape=shape, classes=len(stored.shards.classes), finish=params.finish)
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
            seen = feeds.train.examples * len(trained.rows)
            trained.result["cpu_seconds_per_1k_examples"] = trained.usage.cpu_s / seen * 1000
            trained.result["usage"] = asdict(trained.usage)
            with atomic_file(out / "model.keras") as temporary:
                partial = temporary.with_suffix(".keras")
                models.whole.save(partial)
                partial.rename(temporary)
            write_history(out / "history.csv", trained.rows)
            write_json(out / "train.json", trained.result)
            recorder.metrics(metrics_of(trained))
            for file in ("plan.json", "input.json", "history.csv", "train.json"):
                recorder.artifact(out / file)
            log_model(recorder, models.whole)
        write_json(out / "run.json", {"mlflow_run_id": recorder.run_id, "sent": recorder.sent})
        shutil.rmtree(out / ".checkpoint", ignore_errors=True)
        test = trained.result.get("test", {})
        throughput = trained.result.get("throughput", {}).get("train_examples_per_s", float("nan"))
        say(f"  {throughput:,.0f} examples/s" + (f", test accuracy {test['accuracy']:.4f}" if test else ""))


if __name__ == "__main__":
    main()
