"""The build stage: lay out one configuration's plan, and prove that it delivers the right examples.

Writes runs/NAME/plan.json (every resolved choice) and runs/NAME/input.json (what was proven). Times
nothing: the race does that.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from tasks.earlier import check_identity
from throughline.assembly.inputs import (
    explain_read_errors,
    open_exact_pipeline,
    open_input_pipeline,
    open_input_service,
    open_inputs,
    training_worker,
)
from throughline.assembly.processes import check_processes
from throughline.config.cli import pipeline_stage_cli
from throughline.config.params import Params
from throughline.measurement.draws import check_epoch
from throughline.measurement.equality import digest_examples, measure_difference
from throughline.measurement.padding import measure_sequences
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.plan.training_workers import TrainingWorker
from throughline.results.build import BuildResult, Difference, PlanSummary
from throughline.shared.errors import EmptyDataset
from throughline.shared.layout import Layout
from throughline.shared.progress import echo, echo_result
from throughline.shared.termination import exit_on_sigterm
from throughline.training.replicas import count_training_gpus


def build(
    training: InputPipeline,
    in_order: Mapping[str, InputPipeline],
    exact: Mapping[str, InputPipeline],
    out: Path,
) -> BuildResult:
    """Check and digest a configuration's input pipelines, and write the result into `out`.

    `training` delivers whole batches, not slices; one epoch's draws are checked. `in_order` has
    each split without shuffle, augmentation and postprocessing, `exact` each split decoded exactly.

    Raises:
      UnequalConfigurations: other examples or labels are delivered than those of the manifest.
      EmptyDataset: `training` delivers no batch.
    """
    digests = {split: digest_examples(pipeline) for split, pipeline in in_order.items()}
    draws, rows = check_epoch(training) or (None, None)
    if next(training.batches(), None) is None:  # computes a whole batch once
        raise EmptyDataset(
            f"the {training.split} split of this configuration delivers no batch; add examples,"
            f" or lower batch_size; its plan is {training.plan}"
        )
    frequencies = None
    if rows is not None and training.plan.sampling != "uniform":
        frequencies = class_frequencies(training, rows)
    result = BuildResult(
        plan=str(training.plan),
        examples_digests=digests,
        validation_examples=training.data.count_examples("validation", training.plan.window),
        pixel_difference=_measure_difference(in_order, exact)
        if training.plan.approximate
        else None,
        epoch_draws=draws,
        sequence_batches=measure_sequences(training),
        class_frequencies=frequencies,
    )
    result.write(out)
    return result


def _measure_difference(
    in_order: Mapping[str, InputPipeline], exact: Mapping[str, InputPipeline]
) -> Difference:
    each = [measure_difference(pipeline, exact[split]) for split, pipeline in in_order.items()]
    examples = sum(one.examples for one in each)
    return Difference(
        mean=sum(one.mean * one.examples for one in each) / examples,
        max=max(one.max for one in each),
        examples=examples,
    )


def class_frequencies(pipeline: InputPipeline, rows: np.ndarray) -> dict[str, float]:
    classes = pipeline.data.shards.classes
    labels = np.asarray(pipeline.data.memmap(pipeline.split, "label"))[rows]
    shares = np.bincount(labels, minlength=len(classes)) / len(rows)
    return dict(zip(classes, shares.tolist(), strict=True))


def summarize_plan(params: Params, name: str, pipeline: InputPipeline) -> PlanSummary:
    inputs, label = pipeline.element_spec[:2]
    named = inputs if isinstance(inputs, dict) else {"input": inputs}
    return PlanSummary(
        pipeline=name,
        config=params.pipelines[name].model_dump(),
        data_digest=pipeline.data.shards.data_digest,
        plan=str(pipeline.plan),
        steps=[{"step": str(step), "params_key": step.params_key} for step in pipeline.plan.steps],
        autotunes=pipeline.plan.autotunes,
        device_ops=[op.identity for op in pipeline.plan.device_ops],
        element={
            name: {"shape": value.shape.as_list(), "dtype": value.dtype.name}
            for name, value in named.items()
        }
        | {"label": {"dtype": label.dtype.name}},
        examples=pipeline.examples,
        steps_per_epoch=pipeline.steps_per_epoch,
        batch_size=pipeline.batch_size,
        batch_mib=pipeline.batch_bytes / 2**20,
    )


def main() -> None:
    """Lay out one configuration, and check that it delivers the right examples."""
    with (
        pipeline_stage_cli(main) as context,
        open_input_service(context.params.pipelines[context.name]) as address,
    ):
        check_identity()
        params, name = context.params, context.name
        worker = training_worker(params)
        check_processes(params, name, worker, gpus=count_training_gpus())
        if worker.index:  # the first host does it for all
            return
        data = open_inputs(params, Layout())
        training = open_input_pipeline(params, name, data, address=address)
        in_order = {
            split: open_input_pipeline(
                params, name, data, split=split, purpose="compare", address=address
            )
            for split in data.shards.splits
        }
        exact = {split: open_exact_pipeline(params, data, split=split) for split in in_order}
        out = Layout().results(name)
        whole = TrainingWorker(batch_multiple=training.worker.multiple)
        alone = replace(training, worker=whole)
        with explain_read_errors(data, shards=not training.plan.reads_whole_snapshot):
            result = build(alone, in_order, exact, out)
            summarize_plan(params, name, alone).write(out)
        digests = result.examples_digests
        examples = sum(digest.examples for digest in digests.values())
        echo(f"build {name}: {result.plan}")
        echo_result(f"{examples:,} examples, digest of train {digests['train'].digest[:12]}")
        if apart := result.pixel_difference:
            echo(
                f"  approximate: pixels differ by {apart.mean:.2f} of 256 levels on average, by"
                f" {apart.max:.0f} at most"
            )
        if texts := result.sequence_batches:
            echo(
                f"  {texts.padding_pct:.1f} % padding, {texts.distinct_shapes} distinct shapes of"
                " batches"
            )
        for label, share in (result.class_frequencies or {}).items():
            echo(f"  {label}: {share:.1%} of the delivered examples")


if __name__ == "__main__":
    exit_on_sigterm()
    main()
