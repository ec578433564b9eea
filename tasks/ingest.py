"""The ingest stage: look at every example of the source once, refuse what is unusable with a
reason, and write the manifest.

Everything after this stage can rely on it: images decode, labels exist, splits are fixed and free
of duplicates across.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from throughline.config.cli import stage_cli
from throughline.data import sources
from throughline.data.class_names import drop_odd_classes, refuse_alike
from throughline.data.documents import write_documents
from throughline.data.encodings.decoder import Decoder
from throughline.data.encodings.images import (
    ImageInfo,
    RejectedImage,
    inspect_image,
    inspect_stored,
)
from throughline.data.manifest import COLUMNS, SPLITS, VALUES, Manifest, write_manifest
from throughline.data.shards.records import RecordSchema, example_key
from throughline.data.sources.table import fill_medians
from throughline.data.splits import assign_split
from throughline.settings import DataSettings, SplitSettings
from throughline.shared.errors import TooManyRejects, UnusableDataset
from throughline.shared.files import digest_blake2b, digest_json, resumable_folder
from throughline.shared.layout import Layout, from_here
from throughline.shared.limits import usable_cores
from throughline.shared.program import digest_program
from throughline.shared.progress import echo, echo_problem, echo_result, in_threads, progress

REJECTS_SHOWN = 5
COLUMNS_SHOWN = 12
ROWS_AT_ONCE = 4096
STEPS_PER_BLOCK = 4096  # consecutive time steps that make up one record


def ingest(settings: DataSettings, out: Path) -> Manifest:
    """Write the manifest of the dataset that `settings` describes into `out`, replacing it only
    when complete.

    Raises:
      DataNotFound, UnreadableSource: the source is missing or not what it should be.
      TooManyRejects: more than `max_reject_fraction` of the examples are unusable.
      UnusableDataset: what is left is not enough to train on.
    """
    source = sources.scan(settings)
    with resumable_folder(
        out, key=digest_json([settings.model_dump(), digest_program("ingest")])
    ) as folder:
        notes: Counter = Counter()
        if isinstance(source, sources.Series):
            rows = _from_series(source, folder, settings.split)
            rejected, classes, schema = [], (), source.schema
        elif isinstance(source, sources.Arrays):
            rows, rejected = _from_arrays(source, folder), list(source.rejected)
            classes, schema = tuple(source.classes), source.schema
        elif isinstance(source, sources.Texts):
            rows, rejected = write_documents(source, folder, encoding=settings.encoding)
            classes = tuple(sorted(set(rows["label"])))
            schema = RecordSchema(payload="text", shape=(None,), dtype="int32")
        else:
            rows, rejected, notes, schema = _from_files(
                source, folder, out, max_pixels=settings.max_pixels
            )
            classes = (
                tuple(source.classes)
                if isinstance(source, sources.StoredImages)
                else tuple(sorted(set(rows["label"])))
            )
        for words in schema.categories:
            refuse_alike(settings.path, "categories", words)
        total = len(rows) + len(rejected)
        if schema.label == "class" and schema.payload != "series":
            # Nobody sees blanks around a name; `cat` and `cat ` are one class.
            rows = rows.assign(label=[name.strip() for name in rows["label"]])
            classes = tuple(dict.fromkeys(name.strip() for name in classes))
            refuse_alike(settings.path, "classes", classes)
            rows, classes, unnamed = drop_odd_classes(rows, classes)
            rejected += unnamed
        if schema.payload != "series":
            # Two photos with the same bytes are one photo; two rows of numbers that agree are two
            # observations.
            rows, duplicates = _without_duplicates(
                rows, keep=settings.duplicates == "keep" or schema.feature == "features"
            )
            rejected = sorted([*rejected, *duplicates], key=lambda item: item.id)
        rejects = pd.DataFrame(
            [(item.id, item.reason) for item in rejected], columns=["id", "reason"]
        ).map(_printable)
        _check_rejects(rejects, total=total, limit=settings.max_reject_fraction, folder=folder)
        examples = _table(rows, classes, settings.split, series=schema.payload == "series")
        if isinstance(source, sources.Arrays) and schema.medians:
            train = np.asarray(examples["row"])[np.asarray(examples["split"] == "train")]
            source = fill_medians(source, train)
            schema = source.schema
            with _values_file(folder, source.values) as copy:
                copy.write(source.values.data)
        stats = _stats(examples, classes, rejects, notes, source)
        classified = schema.label == "class" and settings.label_kind != "none"
        _check_usable(stats, set(rows["split"]), classes=classes if classified else None)
        manifest = Manifest(
            examples=examples,
            classes=classes,
            schema=schema,
            rejected=rejects,
            stats=stats,
            folder=folder,
        )
        write_manifest(manifest)
    return manifest


def _from_arrays(source: sources.Arrays, folder: Path) -> pd.DataFrame:
    """Copy the values next to the manifest and digest each example."""
    digests: list[str] = []
    with _values_file(folder, source.values) as copy:
        starts = range(0, len(source.values), ROWS_AT_ONCE)
        for start in progress(starts, total=len(starts), label="ingest", unit="blocks"):
            block = np.ascontiguousarray(source.values[start : start + ROWS_AT_ONCE])
            copy.write(block.data)
            rows = block.reshape(-1).view(np.uint8).data
            size = block.nbytes // max(1, len(block))
            digests += [
                digest_blake2b(bytes(rows[at : at + size])) for at in range(0, block.nbytes, size)
            ]
    size = source.values.dtype.itemsize * int(np.prod(source.values.shape[1:]))
    columns = {
        "id": source.ids,
        "uri": "",
        "row": np.arange(len(digests)),
        "label": source.labels,
        "bytes": size,
        "digest": digests,
    }
    return pd.DataFrame({**columns, "split": [split or "" for split in source.splits]})


def _from_series(source: sources.Series, folder: Path, split: SplitSettings) -> pd.DataFrame:
    """Cut the series by time into train, validation and test, and each of them into blocks of
    consecutive steps.
    """
    with _values_file(folder, source.values) as copy:
        copy.write(np.ascontiguousarray(source.values).data)
    count = len(source.values)
    edges = [
        0,
        round(count * (1 - split.validation - split.test)),
        round(count * (1 - split.test)),
        count,
    ]
    rows = []
    for name, begin, end in zip(SPLITS, edges, edges[1:], strict=False):
        for row in range(begin, end, STEPS_PER_BLOCK):
            block = np.ascontiguousarray(source.values[row : min(row + STEPS_PER_BLOCK, end)])
            digest = digest_blake2b(block.tobytes())
            # The label of a block is its number of time steps.
            rows.append(
                {
                    "id": f"{name}/{row:012d}",
                    "uri": "",
                    "row": row,
                    "label": len(block),
                    "bytes": block.nbytes,
                    "digest": digest,
                    "split": name,
                }
            )
    return pd.DataFrame(rows)


@contextmanager
def _values_file(folder: Path, values: np.ndarray) -> Iterator[BinaryIO]:
    """A .npy file for values of this shape and dtype, open for writing.

    Written, not mapped: on a full disk a write fails with an error, a mapped page with a signal.
    """
    with (folder / VALUES).open("wb") as file:
        np.lib.format.write_array_header_2_0(
            file, {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
        )
        yield file


def _from_files(
    source: sources.ImageFiles | sources.StoredImages, folder: Path, final: Path, *, max_pixels: int
) -> tuple[pd.DataFrame, list[sources.Rejected], Counter, RecordSchema]:
    """Examine all images on all cores; Pillow decodes without the GIL, TensorFlow outside of this
    process.
    """
    converted = folder / "converted"
    converted.mkdir(exist_ok=True)

    def examine_one(
        image: sources.ImageFile | sources.StoredImage,
    ) -> ImageInfo | sources.Rejected:
        inspect = (
            partial(inspect_stored, offset=image.offset, size=image.size)
            if isinstance(image, sources.StoredImage)
            else partial(inspect_image, root=source.root)
        )
        try:
            return inspect(image.path, max_pixels=max_pixels, converted=converted, decoder=decoder)
        except RejectedImage as reason:
            return sources.Rejected(id=image.id, reason=str(reason))

    rows, rejected, notes, sizes = [], list(source.rejected), Counter(), Counter()
    images = source.images if isinstance(source, sources.StoredImages) else source.files
    with Decoder() as decoder:
        results = list(
            progress(
                in_threads(examine_one, images, workers=usable_cores()),
                total=len(images),
                label="ingest",
            )
        )
    for image, result in zip(images, results, strict=True):
        if isinstance(result, sources.Rejected):
            rejected.append(result)
            continue
        # A converted copy moves along when the finished folder gets its final name.
        moved = result.path.is_relative_to(folder)
        uri = final / result.path.relative_to(folder) if moved else result.path
        notes.update(
            [*(["converted to PNG"] if moved else []), *([result.note] if result.note else [])]
        )
        sizes[(result.height, result.width, result.channels)] += 1
        rows.append(
            {
                "id": image.id,
                "uri": str(uri),
                "row": image.offset if isinstance(image, sources.StoredImage) and not moved else -1,
                "label": image.label,
                "bytes": result.bytes,
                "digest": result.digest,
                "split": image.split or "",
            }
        )
    channels = 1 if all(size[2] == 1 for size in sizes) else 3
    alike = {size[:2] for size in sizes}
    shape = (*next(iter(alike)), channels) if len(alike) == 1 else None
    return (
        pd.DataFrame(rows, columns=list(COLUMNS)),
        rejected,
        notes,
        RecordSchema(payload="encoded", shape=shape, channels=channels),
    )


def _without_duplicates(
    rows: pd.DataFrame, *, keep: bool
) -> tuple[pd.DataFrame, list[sources.Rejected]]:
    """Drop examples whose bytes occur before; held-out splits come first, so that training never
    sees a test example.

    With `keep`, only what would sit on both sides of the source's own splits is dropped, and what
    is listed twice: that is one example, whatever labels it is given. Rows are compared by their
    position, since an id may be listed twice, too.
    """
    rank = [-SPLITS.index(split) if split else 0 for split in rows["split"]]
    rows = (
        rows.assign(rank=rank)
        .sort_values(["rank", "id"], kind="stable", ignore_index=True)
        .drop(columns="rank")
    )
    codes = pd.factorize(rows["digest"])[0]
    first = np.unique(codes, return_index=True)[1][codes]
    firsts = rows.iloc[first]
    doubled = first != np.arange(len(rows))
    if keep:
        doubled &= (firsts["split"].to_numpy() != rows["split"].to_numpy()) | rows.duplicated(
            "id"
        ).to_numpy()
    dropped = []
    for number in np.flatnonzero(doubled).tolist():
        row, earlier = rows.iloc[number], firsts.iloc[number]
        what = "listed twice" if earlier["id"] == row["id"] else f"duplicate of {earlier['id']}"
        notes = [f"labeled {earlier['label']}"] if earlier["label"] != row["label"] else []
        notes += (
            [f"in the {earlier['split']} split"]
            if earlier["split"] and row["split"] not in ("", earlier["split"])
            else []
        )
        dropped.append(
            sources.Rejected(
                id=row["id"], reason=", ".join([what, *(f"there {note}" for note in notes)])
            )
        )
    return rows.loc[~doubled], dropped


def _printable(text: str) -> str:
    """Any text on one line of UTF-8."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode().splitlines())


def _check_rejects(rejects: pd.DataFrame, *, total: int, limit: float, folder: Path) -> None:
    rejects.to_csv(folder / "rejected.csv", index=False)
    if len(rejects) <= limit * total:
        return
    kinds = rejects.groupby(rejects["reason"].map(_group_reason))
    largest = sorted(kinds, key=lambda item: -len(item[1]))[:REJECTS_SHOWN]
    shown = "\n".join(f"  {_describe_kind(str(kind), rows)}" for kind, rows in largest)
    raise TooManyRejects(
        f"{len(rejects)} of {total} examples are unusable, {len(rejects) / total:.1%};"
        f" data.max_reject_fraction allows {limit:.1%}.\n{shown}\n  all of them:"
        f" {from_here(folder / 'rejected.csv')}\nFix or remove them, or raise"
        " data.max_reject_fraction."
    )


def _group_reason(reason: str) -> str:
    """A reason without what differs from example to example."""
    return reason.partition(" of ")[0].partition(":")[0]


def _describe_kind(kind: str, rows: pd.DataFrame) -> str:
    """How many examples are rejected for one kind of reason, and the first of them."""
    name, reason = rows[["id", "reason"]].iloc[0]
    detail = reason.removeprefix(kind).strip(": ")
    return f"{len(rows)} × {kind}, such as {name}{f' ({detail})' if detail else ''}"


def _table(
    rows: pd.DataFrame, classes: Sequence[str], split: SplitSettings, *, series: bool
) -> pd.DataFrame:
    """Number examples and classes and assign splits; where the source brings a test split, only
    validation is assigned.
    """
    number = {name: index for index, name in enumerate(classes)}
    shares = {"validation": split.validation} | (
        {} if "test" in rows["split"].tolist() else {"test": split.test}
    )
    assigned = [
        given or assign_split(digest, shares=shares, seed=split.seed)
        for given, digest in zip(rows["split"], rows["digest"], strict=True)
    ]
    labels = [number[label] for label in rows["label"]] if classes else rows["label"]
    keys = (
        rows["row"].tolist() if series else [example_key(example_id) for example_id in rows["id"]]
    )
    _check_unique(keys, rows["id"].tolist())
    table = pd.DataFrame(rows.assign(key=keys, label=labels, split=assigned), columns=list(COLUMNS))
    return table.sort_values(by="id", ignore_index=True)


def _check_unique(keys: Sequence[int], ids: Sequence[str]) -> None:
    """Keys identify examples; two of 63 bits meet once in billions of billions of pairs."""
    owners: dict[int, str] = {}
    for key, example_id in zip(keys, ids, strict=True):
        if owners.setdefault(key, example_id) is not example_id:
            raise UnusableDataset(
                f"the examples {owners[key]} and {example_id} have the same key; rename one of them"
            )


def _stats(
    examples: pd.DataFrame,
    classes: Sequence[str],
    rejects: pd.DataFrame,
    notes: Counter,
    source: object,
) -> dict:
    reasons = Counter(map(_group_reason, rejects["reason"]))
    balance = {
        str(split): {
            classes[label]: count
            for label, count in sorted(Counter(rows["label"].tolist()).items())
        }
        for split, rows in examples.groupby("split")
        if classes
    }
    return {
        "examples": dict(Counter(examples["split"].tolist()).most_common()),
        "bytes": sum(examples["bytes"].tolist()),
        "class_balance": balance,
        "rejected": len(rejects),
        "reject_reasons": dict(reasons),
        "notes": {**notes, **getattr(source, "notes", {})},
        "features": dict(getattr(source, "features", {})),
        "skipped": dict(getattr(source, "skipped", {})),
        "dialect": list(getattr(source, "dialect", ())),
        "columns": [asdict(reading) for reading in getattr(source, "readings", ())],
        "empty_classes": list(getattr(source, "empty_classes", ())),
    }


def _check_usable(stats: dict, given: Collection[str], *, classes: Sequence[str] | None) -> None:
    """Refuse what cannot be trained on; `given` are the splits that the source itself names, empty
    where it leaves that open, `classes` those that are to be distinguished, if any.
    """
    train = stats["examples"].get("train", 0)
    own = bool(given) and "" not in given
    if train == 0:
        remedy = "mark examples as train in the column `split`" if own else "see data.split"
        raise UnusableDataset(
            f"no example is left for training; {remedy} and the rejected examples"
        )
    if classes is not None and len(classes) < 2:  # noqa: PLR2004
        raise UnusableDataset(
            f"there is a single class, {classes[0]}; a classifier needs at least two class folders"
            " or labels"
        )
    if stats["examples"].get("validation", 0) == 0:
        remedy = "raise data.split.validation or add data"
        if own:
            remedy = (
                "the source names the split of every example: name some `validation`, or leave the"
                " split of some empty, to be assigned"
            )
        raise UnusableDataset(
            f"none of the {train} examples fell into the validation split; {remedy}"
        )


def _name_some(names: Sequence[str]) -> str:
    """The first names, and how many there are where a line would not hold all.

    >>> _name_some(["height", "width"]), _name_some([str(number) for number in range(784)])
    ('height, width', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 772 more')
    """
    more = len(names) - COLUMNS_SHOWN
    return ", ".join(names[:COLUMNS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def count_splits(manifest: Manifest) -> str:
    """How many examples each split has; of a series, time steps."""
    if manifest.schema.payload != "series":
        counts = manifest.stats["examples"].items()
        return ", ".join(f"{count:,} {split}" for split, count in counts)
    steps = {split: sum(manifest.for_split(split)["label"].tolist()) for split in SPLITS}
    return ", ".join(f"{count:,} {split}" for split, count in steps.items()) + " time steps"


def main() -> None:
    """Look at every example of the source, refuse the unusable ones with a reason, write
    data/manifest/.
    """
    with stage_cli(main) as params:
        manifest = ingest(params.data, Layout().manifest)
        stats = manifest.stats
        kind = (
            f"{len(manifest.classes)} classes"
            if manifest.classes
            else f"columns {_name_some(manifest.schema.columns)}"
        )
        echo_result(f"{count_splits(manifest)}; {kind}, {stats['bytes'] / 2**20:,.1f} MiB")
        if stats["rejected"]:
            listed = from_here(Layout().manifest / "rejected.csv")
            echo_problem(f"{stats['rejected']:,} rejected, listed in {listed}")
        for reason, count in {**stats["reject_reasons"], **stats["notes"]}.items():
            echo_problem(f"{count:,} × {reason}")
        for what in stats["dialect"]:
            echo_problem(what)
        for reading in stats["columns"]:
            echo(f"  column {sources.ColumnReading(**reading)}")
        for name, what in stats["features"].items():
            echo(f"  feature {name}: {what}")
        if skipped := stats["skipped"]:
            kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in skipped.items())
            echo_problem(f"{sum(skipped.values()):,} files of other kinds are left out: {kinds}")
        trained = stats["class_balance"].get("train", {})
        if untrained := [name for name in manifest.classes if name not in trained]:
            echo_problem(f"no example in the training split: class {_name_some(untrained)}")
        for name in stats["empty_classes"]:
            echo_problem(f"class folder {name} holds no example and is left out")


if __name__ == "__main__":
    main()
