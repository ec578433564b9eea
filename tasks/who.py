"""Which trainings have seen an example: a photo that must be deleted, a label that was wrong.

An EXAMPLE is an id, as in data/manifest/examples.parquet; or a file, which is recognized by its
bytes or its path in `data.path`; or a key. Copies of it count. All trainings of its data that
MLflow knows are listed, and the checkpoints of interrupted ones, with the epochs whose batches had
it, the first step, and the versions of their models. An example that is held out, or was rejected,
is said to be.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.own_code import find_needs
from throughline.config.cli import command_cli
from throughline.config.params import Params, load_params
from throughline.config.params_file import PARAMS_FILE
from throughline.settings import PipelineConfig
from throughline.shared.errors import DataNotFound, ImpossiblePlan, UserError
from throughline.shared.files import digest_blake2b, digest_json
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo, echo_problem

if TYPE_CHECKING:
    from throughline.assembly.consumption import Use
    from throughline.data.manifest import Manifest
    from throughline.pipelines.read.prepared_data import PreparedData
    from throughline.results.receipt import Receipt
    from throughline.tracking.receipts import LoggedTraining


@dataclass(frozen=True, kw_only=True)
class DataVersion:
    """The prepared data of a project or run, with its parameters and its manifest."""

    params: Params
    data: PreparedData
    manifest: Manifest


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="an id, a file or a key")
    parser.add_argument(
        "--from", dest="list", type=Path, metavar="FILE", help="further examples, one in a line"
    )


def open_versions() -> tuple[dict[str, DataVersion], list[LoggedTraining]]:
    """Open the data of this project and of its runs with changes, by digest.

    Also returns the interrupted trainings whose checkpoints these keep.
    """
    from throughline.assembly.inputs import open_inputs
    from throughline.data.manifest import read_manifest

    versions = dict[str, DataVersion]()
    interrupted: list[LoggedTraining] = []
    for layout in (Layout(), *map(Layout().run, Layout().run_names)):
        if not layout.manifest.exists():
            continue
        try:
            params = load_params(layout.root / PARAMS_FILE)
            data, manifest = open_inputs(params, layout), read_manifest(layout.manifest)
            version = DataVersion(params=params, data=data, manifest=manifest)
            interrupted += list_interrupted(layout, version)
        except UserError as error:
            echo_problem(f"{from_here(layout.root / 'data')} is left out: {error}")
            continue
        versions.setdefault(data.shards.data_digest, version)
    return versions, interrupted


def list_interrupted(layout: Layout, version: DataVersion) -> Iterator[LoggedTraining]:
    """Yield a training for each checkpoint in a project, with the steps it has trained for."""
    from throughline.assembly.fingerprint import training_fingerprint
    from throughline.assembly.receipts import make_receipt
    from throughline.assembly.step_batch import open_training_batches
    from throughline.tracking.receipts import LoggedTraining
    from throughline.training.checkpoint_store import list_checkpoints
    from throughline.training.checkpoints import CHECKPOINT_FOLDER

    params, data = version.params, version.data
    for name in params.pipelines:
        for folder, content in list_checkpoints(layout.results(name) / CHECKPOINT_FOLDER):
            path, state = from_here(folder), content["state"]
            needs = find_needs(layout.root, "train")
            parts = training_fingerprint(params, name, data, needs=needs)
            if content["work"] != parts:
                echo_problem(
                    f"{path} may have seen them: its parameters, data or code are not those of now"
                )
                continue
            multiple = state["batch_multiple"]
            pipeline = open_training_batches(params, name, data, multiple=multiple)
            steps = len(state["rows"]) * pipeline.steps_per_epoch + state["step"]
            receipt = make_receipt(pipeline, params, name, parts, steps=steps)
            yield LoggedTraining(name=f"{name} ({path})", receipt=receipt, versions=())


def find_id(text: str, params: Params) -> str:
    """Return the id of a file in `data.path`; any other text is returned unchanged."""
    path, folder = Path(text).absolute(), Path(params.data.path).absolute()
    inside = path.is_file() and path.is_relative_to(folder)
    return path.relative_to(folder).as_posix() if inside else text


def find_examples(text: str, params: Params, manifest: Manifest) -> np.ndarray:
    """Return the places in the manifest's table of an example and its copies, (n,)."""
    table, name = manifest.examples, find_id(text, params)
    rejected = manifest.rejected[manifest.rejected["id"] == name]
    same = {name, *(reason.removeprefix("duplicate of ") for reason in rejected["reason"])}
    known = table["id"].isin([*same]) | (table["key"].astype(str) == text)
    if Path(text).is_file():
        known |= table["digest"] == digest_blake2b(Path(text).read_bytes())
    return np.flatnonzero(table["digest"].isin(table["digest"][known].tolist()))


def find_uses_in(receipt: Receipt, version: DataVersion, keys: np.ndarray) -> Mapping[int, Use]:
    """Return when a training consumed the examples with these keys, by key.

    Raises:
      ImpossiblePlan: This cannot be known; says why.
    """
    from throughline.assembly.consumption import find_uses
    from throughline.assembly.step_batch import open_training_batches

    name, data = receipt.pipeline, version.data
    params = replace(
        version.params,
        pipelines={name: PipelineConfig.model_validate(receipt.config)},
        batch_size=receipt.batch_size,
        train=version.params.train.model_copy(update={"seed": receipt.seed}),
    )
    pipeline = open_training_batches(params, name, data, multiple=receipt.batch_multiple)
    stored = np.asarray(data.memmap("train", "key"))
    rows = np.flatnonzero(np.isin(stored, keys))
    uses = find_uses(pipeline, rows, steps=receipt.steps)
    return {int(stored[row]): use for row, use in uses.items()}


def describe_use(uses: Mapping[int, Use] | str, key: int) -> str:
    """Return when a training has used the example with this key, or why that is not known."""
    if isinstance(uses, str):
        return f"cannot be known, because {uses}"
    if key not in uses:
        return "never"
    epochs, first = uses[key].epochs, uses[key].first_step
    several = f"{len(epochs)} epochs, {epochs[0]} to {epochs[-1]}"
    shown = several if len(epochs) > 1 else f"epoch {epochs[0]}"
    return shown + (f", first in step {first:,}" if first else "")


def report_version(
    version: DataVersion, wanted: Sequence[str], trainings: Sequence[LoggedTraining]
) -> set[str]:
    """Print who has seen the examples that this data has; return those of `wanted` it knows."""
    table, rejected = version.manifest.examples, version.manifest.rejected
    known = set[str]()
    places = {text: find_examples(text, version.params, version.manifest) for text in wanted}
    found = table.iloc[np.unique([place for each in places.values() for place in each]).astype(int)]
    keys = found["key"][found["split"] == "train"].to_numpy()
    ordered = [(digest_order(one.receipt), one) for one in trainings]
    uses: dict[str, Mapping[int, Use] | str] = {}  # by what decides them
    for order, receipt in {order: one.receipt for order, one in ordered}.items():
        try:
            uses[order] = find_uses_in(receipt, version, keys) if len(keys) else {}
        except ImpossiblePlan as error:
            uses[order] = str(error)
    for text, rows in places.items():
        for example in table.iloc[rows].itertuples():
            echo(f"{text}: {example.id}, key {example.key}, {example.split} split")
            if example.split != "train":
                echo("  held out: no training has learned from it")
            for order, one in ordered if example.split == "train" else ():
                used = describe_use(uses[order], example.key)
                echo(f"  {one.name}: {used}{''.join(f'; {each}' for each in one.versions)}")
        reasons = rejected["reason"][rejected["id"] == find_id(text, version.params)].tolist()
        for reason in reasons:
            echo(f"{text}: rejected, so no training has seen this one: {reason}")
        known |= {text} if len(rows) or reasons else set()
    return known


def digest_order(receipt: Receipt) -> str:
    """Return a digest of what decides in which steps a training has seen which example."""
    order = receipt.config, receipt.seed, receipt.batch_size, receipt.batch_multiple, receipt.steps
    return digest_json(order)


def main() -> None:
    """Say which trainings have seen an example."""
    with command_cli(main, declare_options) as (_, options):
        from throughline.tracking.receipts import list_trainings

        try:
            lines = options.list.read_text(encoding="utf-8-sig").split("\n") if options.list else []
        except (OSError, UnicodeDecodeError) as error:
            raise DataNotFound(f"--from {options.list} is no file of text: {error}") from error
        named = (one.strip() for one in [*options.examples, *lines])
        wanted = [*dict.fromkeys(filter(None, named))]
        if not wanted:
            raise DataNotFound("name an example, or a file that lists examples with --from")
        (versions, interrupted), known = open_versions(), set[str]()
        trainings = [*list_trainings(), *interrupted]
        for digest, version in versions.items():
            of_it = [one for one in trainings if one.receipt.data_digest == digest]
            known |= report_version(version, wanted, of_it)
        for text in wanted:
            if text not in known:
                echo(f"{text}: in no data that is here")
        away = [one for one in trainings if one.receipt.data_digest not in versions]
        if away:
            commits = sorted({one.receipt.commit[:12] or "unknown" for one in away})
            echo_problem(
                f"trainings of data that is not here may have seen them:"
                f" {', '.join(one.name for one in away)}. Ask again after `git checkout COMMIT &&"
                f" dvc checkout`, for these commits: {', '.join(commits)}"
            )


if __name__ == "__main__":
    main()
