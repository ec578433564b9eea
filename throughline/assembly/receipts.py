"""Makes the receipt of a training, and compares a project with one."""

from collections.abc import Mapping
from pathlib import Path

from throughline.assembly.step_batch import digest_batch, find_doubt, read_batch
from throughline.config.params import Params
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.results.receipt import LOSSES, Receipt, SampleBatch
from throughline.shared.errors import MissingInput
from throughline.shared.files import digest_file
from throughline.shared.layout import MODEL_FILE, from_here
from throughline.shared.libraries import LIBRARIES, installed_versions
from throughline.tracking.lineage import read_lineage

OF_PIPELINE = ("seed", "batch_size", "examples", "steps_per_epoch")  # fields of both


def make_receipt(
    pipeline: InputPipeline,
    params: Params,
    name: str,
    parts: Mapping[str, str],
    *,
    steps: int,
    folder: Path | None = None,
) -> Receipt:
    """Make the receipt of a training of `steps` steps, whose model and losses are in `folder`.

    `pipeline` is that of `open_training_batches`; `parts` is its fingerprint. The receipt of a
    training that has not ended has no `folder`, and cannot be checked.
    """
    tags, sample = read_lineage(), None
    if folder and not find_doubt(pipeline):
        first = (steps - 1) // pipeline.steps_per_epoch * pipeline.steps_per_epoch
        sample = SampleBatch(step=first, digest=digest_batch(read_batch(pipeline, first)))
    return Receipt(
        pipeline=name,
        config=params.pipelines[name].model_dump(exclude_defaults=True),
        plan=str(pipeline.plan),
        seed=pipeline.seed,
        batch_size=pipeline.batch_size,
        batch_multiple=pipeline.worker.multiple,
        examples=pipeline.examples,
        steps_per_epoch=pipeline.steps_per_epoch,
        steps=steps,
        parts=parts,
        versions=installed_versions(sorted(LIBRARIES["train"])),
        data_digest=pipeline.data.shards.data_digest,
        sample=sample,
        commit=tags.get("git.commit", ""),
        changed=tags.get("git.dirty") == "true",
        model=digest_file(folder / MODEL_FILE) if folder else "",
        losses=digest_file(folder / LOSSES) if folder else "",
    )


def compare_with_receipt(
    receipt: Receipt, pipeline: InputPipeline, parts: Mapping[str, str]
) -> str:
    """Return the parts in which `pipeline` and its fingerprint differ from the receipt.

    Raises:
      MissingInput: The sample batch in the receipt cannot be rebuilt.
    """
    differing = ", ".join(
        [part for part in receipt.parts if parts.get(part) != receipt.parts[part]]
        + [name for name in OF_PIPELINE if getattr(receipt, name) != getattr(pipeline, name)]
    )
    sample = receipt.sample
    if sample is None:
        return differing
    try:
        digest = digest_batch(read_batch(pipeline, sample.step))
    except StopIteration:  # there are fewer examples now
        digest = ""
    if digest == sample.digest:
        return differing
    where = f"commit {receipt.commit[:12]}" if receipt.commit else "no commit that is known"
    edited = " with changes that were not committed" if receipt.changed else ""
    why = f"what differs: {differing}" if differing else "find damage with `python -m tasks.verify`"
    raise MissingInput(
        f"the batches of this training of {receipt.pipeline} cannot be rebuilt here; {why}. It was"
        f" trained from {where}{edited}"
    )


def check_files(receipt: Receipt, folder: Path) -> None:
    """Check that model and losses, where they exist, are those that the training wrote."""
    for file, digest in ((MODEL_FILE, receipt.model), (LOSSES, receipt.losses)):
        path = folder / file
        if digest and path.exists() and digest_file(path) != digest:
            raise MissingInput(
                f"{from_here(path)} is not the file that the training wrote; `dvc checkout"
                f" {from_here(path)}` restores that file"
            )
