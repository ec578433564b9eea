"""Say which trainings have seen an example, such as a photo to be deleted or a wrong label.

An EXAMPLE is an id, as in data/manifest/examples.parquet; or a file, which is recognized by its
bytes or its path in `data.path`; or a key. Copies of it count. All trainings of its data that
MLflow knows are listed, and the checkpoints of interrupted ones, with the epochs whose batches had
the example, the first step, and the versions of their models. The output also says whether an
example is held out or was rejected.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.own_code import find_needs
from throughline.config.cli import command_cli
from throughline.config.params import Params
from throughline.shared.errors import DataNotFound, UserError
from throughline.shared.files import digest_blake2b, digest_json
from throughline.shared.layout import Layout, from_here
from throughline.shared.progress import echo, echo_problem

if TYPE_CHECKING:
    from throughline.assembly.consumption import DataVersion, Use
    from throughline.data.manifest import Manifest
    from throughline.tracking.receipts import LoggedTraining

# Fields of a receipt that decide in which steps a training has seen each example.
ORDERED_BY = ("config", "seed", "batch_size", "batch_multiple", "steps")


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help="an id, a file or a key")
    parser.add_argument(
        "--from", dest="list", type=Path, metavar="FILE", help="further examples, one in a line"
    )


def open_versions() -> tuple[dict[str, DataVersion], list[LoggedTraining]]:
    """Open the data of this project and its runs, by digest; also list interrupted trainings."""
    from throughline.assembly.consumption import DataVersion, list_interrupted

    versions = dict[str, DataVersion]()
    interrupted: list[LoggedTraining] = []
    for layout in (Layout(), *map(Layout().run, Layout().run_names)):
        if not layout.manifest.exists():
            continue
        try:
            version, needs = DataVersion.open(layout), find_needs(layout.root, "train")
            for name in version.params.pipelines:
                interrupted += list_interrupted(layout, version, name, needs)
        except UserError as error:
            echo_problem(f"{from_here(layout.root / 'data')} is left out: {error}")
        else:
            versions.setdefault(version.data.shards.data_digest, version)
    return versions, interrupted


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


def describe_use(use: Use | None) -> str:
    if use is None:
        return "never"
    first, last, count = use.epochs[0], use.epochs[-1], len(use.epochs)
    shown = f"{count} epochs, {first} to {last}" if count > 1 else f"epoch {first}"
    return shown + (f", first in step {use.first_step:,}" if use.first_step else "")


def report_version(
    version: DataVersion, wanted: Sequence[str], trainings: Sequence[LoggedTraining]
) -> set[str]:
    """Print which trainings have seen the `wanted` examples; return those found in this data."""
    from throughline.assembly.consumption import find_uses_in

    table, rejected = version.manifest.examples, version.manifest.rejected
    places = {text: find_examples(text, version.params, version.manifest) for text in wanted}
    found = table.iloc[np.unique(np.concatenate([*places.values()]))]
    keys = found["key"][found["split"] == "train"].to_numpy()
    uses: dict[str, Mapping[int, Use] | str] = {}  # by digest of `ORDERED_BY`
    known = set[str]()
    for text, rows in places.items():
        for example in table.iloc[rows].itertuples():
            echo(f"{text}: {example.id}, key {example.key}, {example.split} split")
            if example.split != "train":
                echo("  held out: no training has learned from it")
                continue
            for one in trainings:
                order = digest_json([getattr(one.receipt, name) for name in ORDERED_BY])
                if order not in uses:
                    uses[order] = find_uses_in(one.receipt, version, keys)
                use = uses[order]
                said = use if isinstance(use, str) else describe_use(use.get(example.key))
                echo(f"  {'; '.join([f'{one.name}: {said}', *one.versions])}")
        reasons = rejected["reason"][rejected["id"] == find_id(text, version.params)].tolist()
        for reason in reasons:
            echo(f"{text}: rejected, so no training has seen this one: {reason}")
        known |= {text} if len(rows) or reasons else set()
    return known


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
