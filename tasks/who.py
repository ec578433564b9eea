"""Which trainings have seen an example: a photo that must be deleted, a label that was wrong.

An EXAMPLE is an id, as in data/manifest/examples.parquet; or a file, which is recognized by its
bytes; or a key. Copies of it count. All trainings of its data are listed, with the epochs whose
batches had it, the first step, and the versions of their models in MLflow. An example that is held
out, or was rejected, is said to be.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from throughline.config.cli import command_cli
from throughline.config.params import Params, load_params
from throughline.config.params_file import PARAMS_FILE
from throughline.results.base import parse
from throughline.results.receipt import Receipt
from throughline.results.train import RunRecord
from throughline.settings import PipelineConfig
from throughline.shared.errors import DataNotFound, ImpossiblePlan, UserError
from throughline.shared.files import digest_blake2b
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo, echo_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from throughline.assembly.consumption import Use
    from throughline.data.manifest import Manifest
    from throughline.pipelines.read.prepared_data import PreparedData


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training's name, its receipt, and its model versions in words."""

    name: str
    receipt: Receipt
    versions: Sequence[str] = ()


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


def list_known_trainings(layouts: Sequence[Layout]) -> list[Training]:
    """List the trainings that MLflow knows, and those in the folders of the runs."""
    from throughline.tracking.receipts import list_trainings
    from throughline.tracking.store import STORE_ERRORS

    found = {}
    for layout in layouts:
        for path in sorted(layout.root.glob(f"runs/*/{Receipt.FILE}")):
            receipt = Receipt.read(path.parent)
            run_id = RunRecord.read(path.parent).mlflow_run_id or str(path)
            found.setdefault(run_id, Training(name=str(from_here(path.parent)), receipt=receipt))
    try:
        for logged in list_trainings():
            receipt = parse(Receipt, logged.receipt)
            name = f"{logged.name} ({logged.run_id[:8]})"
            found[logged.run_id] = Training(name=name, receipt=receipt, versions=logged.versions)
    except STORE_ERRORS as error:
        echo_problem(f"MLflow is not asked, because it does not answer: {error}")
    return [*found.values()]


def open_version(layout: Layout) -> DataVersion | None:
    """Open the data of a project or run; None, with a message, if it is incomplete."""
    from throughline.assembly.inputs import open_inputs
    from throughline.data.manifest import read_manifest

    try:
        params = load_params(layout.root / PARAMS_FILE)
        data, manifest = open_inputs(params, layout), read_manifest(layout.manifest)
    except UserError as error:
        echo_problem(f"{from_here(layout.root / 'data')} is left out: {error}")
        return None
    return DataVersion(params=params, data=data, manifest=manifest)


def find_uses_in(receipt: Receipt, version: DataVersion, keys: np.ndarray) -> Mapping[int, Use]:
    """Return when a training consumed the examples with these keys, by key.

    Raises:
      ImpossiblePlan: This cannot be known; says why.
    """
    from throughline.assembly.consumption import find_uses
    from throughline.assembly.step_batch import open_training_batches

    settings = version.params.train.model_copy(update={"seed": receipt.seed})
    params = replace(
        version.params,
        pipelines={receipt.pipeline: PipelineConfig.model_validate(receipt.config)},
        batch_size=receipt.batch_size,
        train=settings,
    )
    pipeline = open_training_batches(
        params, receipt.pipeline, version.data, multiple=receipt.batch_multiple
    )
    stored = np.asarray(version.data.memmap("train", "key"))
    rows = np.flatnonzero(np.isin(stored, keys))
    uses = find_uses(pipeline, rows, steps=receipt.steps)
    return {int(stored[row]): use for row, use in uses.items()}


def find_examples(text: str, manifest: Manifest) -> np.ndarray:
    """Return the places in the manifest's table of an example and its copies, (n,)."""
    table = manifest.examples
    known = (table["id"] == text) | (table["key"].astype(str) == text)
    if Path(text).is_file():
        known |= table["digest"] == digest_blake2b(Path(text).read_bytes())
    return np.flatnonzero(table["digest"].isin(table["digest"][known].tolist()))


def describe_epochs(epochs: Sequence[int]) -> str:
    """Return numbers in words: `1 to 12`, `2, 5, 9`."""
    first, last = epochs[0], epochs[-1]
    if last - first == len(epochs) - 1 > 1:
        return f"{first} to {last}"
    return ", ".join(map(str, epochs))


def report_version(
    version: DataVersion, wanted: Sequence[str], trainings: Sequence[Training]
) -> set[str]:
    """Print who has seen the examples that this data has; return those of `wanted` it knows."""
    table, rejected = version.manifest.examples, version.manifest.rejected
    places = {text: find_examples(text, version.manifest) for text in wanted}
    found = table.iloc[np.unique(np.concatenate([*places.values(), np.empty(0, int)]).astype(int))]
    keys = found["key"][found["split"] == "train"].to_numpy()
    orders: dict[str, Mapping[int, Use] | str] = {}
    seen: list[tuple[Training, Mapping[int, Use] | str]] = []
    for training in trainings if len(keys) else ():
        receipt = training.receipt
        order = json.dumps([receipt.config, receipt.seed, receipt.batch_size, receipt.steps])
        if order not in orders:
            try:
                orders[order] = find_uses_in(receipt, version, keys)
            except ImpossiblePlan as error:
                orders[order] = str(error)
        seen.append((training, orders[order]))
    for text, rows in places.items():
        for example in table.iloc[rows].itertuples():
            echo(f"{text}: {example.id}, key {example.key}, {example.split} split")
            if example.split != "train":
                echo("  held out: no training has learned from it")
            for training, uses in seen if example.split == "train" else ():
                echo(f"  {describe_use(training, uses, example.key)}")
        for reason in rejected["reason"][rejected["id"] == text]:
            echo(f"{text}: rejected, so no training has seen it: {reason}")
    known = {text for text, rows in places.items() if len(rows)}
    return known | ({*wanted} & {*rejected["id"]})


def describe_use(training: Training, uses: Mapping[int, Use] | str, key: int) -> str:
    """Return when a training has seen the example with this key, and its model's versions."""
    if isinstance(uses, str):
        return f"{training.name}: cannot be known, because {uses}"
    if key not in uses:
        return f"{training.name}: never"
    use = uses[key]
    epochs = f"epoch{'s' * (len(use.epochs) > 1)} {describe_epochs(use.epochs)}"
    first = f", first in step {use.first_step:,}" if use.first_step else ""
    models = f"; {', '.join(training.versions)}" if training.versions else ""
    return f"{training.name}: {epochs}{first}{models}"


def main() -> None:
    """Say which trainings have seen an example."""
    with command_cli(main, declare_options) as (_, options):
        listed = options.list.read_text(encoding="utf-8").split("\n") if options.list else []
        wanted = [*dict.fromkeys([*options.examples, *filter(None, map(str.strip, listed))])]
        if not wanted:
            raise DataNotFound("name an example, or a file that lists examples with --from")
        layouts = [Layout(), *map(Layout().run, Layout().run_names)]
        trainings = list_known_trainings(layouts)
        versions: dict[str, DataVersion] = {}
        for layout in layouts:
            if (layout.manifest / "manifest.json").exists() and (version := open_version(layout)):
                versions.setdefault(version.data.shards.data_digest, version)
        known, away = set[str](), {one.name: one.receipt for one in trainings}
        for digest, version in versions.items():
            of_it = [one for one in trainings if one.receipt.data_digest == digest]
            known |= report_version(version, wanted, of_it)
            for one in of_it:
                del away[one.name]
        for text in wanted:
            if text not in known:
                echo(f"{text}: in no data that is here")
        if away:
            commits = ", ".join(sorted({one.commit[:12] or "unknown" for one in away.values()}))
            echo_problem(
                f"trainings of data that is not here may have seen them: {', '.join(away)}. Ask"
                f" again after `git checkout COMMIT && dvc checkout`, for these commits: {commits}"
            )


if __name__ == "__main__":
    main()
