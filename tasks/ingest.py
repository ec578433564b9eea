"""Stage 1, ingest: look at every example of the source once, refuse what is unusable with a reason, and write the manifest.

Everything after this stage can rely on it: images decode, labels exist, splits are fixed and free of duplicates across.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.data import sources
from tasks.data.images import Examined, Unusable, examine
from tasks.data.manifest import COLUMNS, SPLITS, Manifest, write_manifest
from tasks.data.order import split_of
from tasks.data.records import RecordSchema
from tasks.errors import TooManyRejects, UnusableDataset
from tasks.files import digest_bytes, digest_json, resumable_folder
from tasks.progress import progress, say
from tasks.settings import DataSettings, SplitSettings
from tasks.stage import Layout, door

REJECTS_SHOWN = 5


def ingest(settings: DataSettings, out: Path) -> Manifest:
    """Write the manifest of the data set that `settings` describes into `out`, replacing it only when complete.

    Raises:
      DataNotFound, UnreadableSource: the source is missing or not what it should be.
      TooManyRejects: more than `max_reject_fraction` of the examples are unusable.
      UnusableDataset: what is left is not enough to train on.
    """
    found = sources.find(settings)
    with resumable_folder(out, key=digest_json(settings.model_dump())) as folder:
        if isinstance(found, sources.ImageArrays):
            rows, rejected, notes, schema = _from_arrays(found, folder)
            classes = tuple(found.classes)
        else:
            rows, rejected, notes, schema = _from_files(found, folder, out, max_pixels=settings.max_pixels)
            classes = tuple(sorted({row["label"] for row in rows}))
        total = len(rows) + len(rejected)
        rows, duplicates = _without_duplicates(rows, keep=settings.duplicates == "keep")
        rejected = sorted([*rejected, *duplicates], key=lambda item: item.id)
        rejects = pd.DataFrame([{"id": item.id, "reason": item.reason} for item in rejected], columns=["id", "reason"])
        _check_rejects(rejects, total=total, limit=settings.max_reject_fraction, folder=folder)
        examples = _table(rows, classes, settings.split)
        stats = _stats(examples, classes, rejects, notes, found)
        _check_usable(stats, classes)
        manifest = Manifest(examples=examples, classes=classes, schema=schema, rejected=rejects, stats=stats, folder=folder)
        write_manifest(manifest)
    return manifest


def _from_arrays(found: sources.ImageArrays, folder: Path) -> tuple[list[dict], list[sources.Rejected], Counter, RecordSchema]:
    count, height, width, channels = found.images.shape
    rows = []
    # Written, not mapped: on a full disk a write fails with an error, a mapped page with a signal.
    with (folder / "images.npy").open("wb") as copy:
        header = {"descr": "|u1", "fortran_order": False, "shape": found.images.shape}
        np.lib.format.write_array_header_2_0(copy, header)
        for index in progress(range(count), total=count, label="ingest"):
            pixels = found.images[index].tobytes()
            copy.write(pixels)
            rows.append(
                {
                    "id": found.ids[index],
                    "uri": "",
                    "row": index,
                    "label": found.labels[index],
                    "bytes": height * width * channels,
                    "digest": digest_bytes(pixels),
                    "split": found.splits[index],
                }
            )
    return rows, [], Counter(), RecordSchema(payload="raw", shape=(height, width, channels), channels=channels)


def _from_files(
    found: sources.ImageFiles, folder: Path, final: Path, *, max_pixels: int
) -> tuple[list[dict], list[sources.Rejected], Counter, RecordSchema]:
    """Examine all files on all cores; Pillow decodes outside Python's lock."""
    converted = folder / "converted"
    converted.mkdir(exist_ok=True)

    def look(file: sources.ImageFile) -> Examined | sources.Rejected:
        try:
            return examine(file.path, root=found.root, max_pixels=max_pixels, converted=converted)
        except Unusable as reason:
            return sources.Rejected(id=file.id, reason=str(reason))

    rows, rejected, notes, sizes = [], list(found.rejected), Counter(), Counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = progress(pool.map(look, found.files), total=len(found.files), label="ingest")
        for file, result in zip(found.files, results, strict=True):
            if isinstance(result, sources.Rejected):
                rejected.append(result)
                continue
            # A converted copy moves along when the finished folder gets its final name.
            moved = result.path.is_relative_to(folder)
            uri = final / result.path.relative_to(folder) if moved else result.path
            notes.update(
                ["converted to PNG"] if moved else [],
            )
            notes.update([result.note] if result.note else [])
            sizes[(result.height, result.width, result.channels)] += 1
            rows.append(
                {
                    "id": file.id,
                    "uri": str(uri),
                    "row": -1,
                    "label": file.label,
                    "bytes": result.bytes,
                    "digest": result.digest,
                    "split": file.split,
                }
            )
    channels = 1 if all(size[2] == 1 for size in sizes) else 3
    alike = {size[:2] for size in sizes}
    shape = (*next(iter(alike)), channels) if len(alike) == 1 else None
    return rows, rejected, notes, RecordSchema(payload="encoded", shape=shape, channels=channels)


def _without_duplicates(rows: list[dict], *, keep: bool) -> tuple[list[dict], list[sources.Rejected]]:
    """Drop examples whose bytes occur before; held-out splits come first, so that training never sees a test example.

    With `keep`, only the copies that would sit on both sides of the source's own splits are dropped.
    """
    first: dict[str, dict] = {}
    kept, dropped = [], []
    for row in sorted(rows, key=lambda row: (-SPLITS.index(row["split"] or "train"), row["id"])):
        earlier = first.setdefault(row["digest"], row)
        if earlier is row or (keep and earlier["split"] == row["split"]):
            kept.append(row)
            continue
        label = "" if earlier["label"] == row["label"] else f", there labelled {earlier['label']}"
        dropped.append(sources.Rejected(id=row["id"], reason=f"duplicate of {earlier['id']}{label}"))
    return kept, dropped


def _check_rejects(rejects: pd.DataFrame, *, total: int, limit: float, folder: Path) -> None:
    rejects.to_csv(folder / "rejected.csv", index=False)
    if len(rejects) <= limit * total:
        return
    shown = "\n".join(f"  {row['id']}: {row['reason']}" for row in rejects.head(REJECTS_SHOWN).to_dict("records"))
    raise TooManyRejects(
        f"{len(rejects)} of {total} examples are unusable, {len(rejects) / total:.1%}; data.max_reject_fraction allows {limit:.1%}.\n"
        f"{shown}\n  all of them: {folder / 'rejected.csv'}\nMend or remove them, or raise data.max_reject_fraction."
    )


def _table(rows: Sequence[dict], classes: Sequence[str], split: SplitSettings) -> pd.DataFrame:
    """Number the classes and deal the splits; where the source brings a test split, only validation is dealt."""
    number = {name: index for index, name in enumerate(classes)}
    brings_test = any(row["split"] == "test" for row in rows)
    shares = {"validation": split.validation} | ({} if brings_test else {"test": split.test})
    for row in rows:
        row["label"] = number[row["label"]]
        row["split"] = row["split"] or split_of(row["digest"], shares=shares, seed=split.seed)
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values("id", ignore_index=True)


def _stats(examples: pd.DataFrame, classes: Sequence[str], rejects: pd.DataFrame, notes: Counter, found: object) -> dict:
    reasons = Counter(reason.split(" of ")[0].split(":")[0] for reason in rejects["reason"])
    balance = {
        str(split): {classes[label]: count for label, count in sorted(Counter(rows["label"].tolist()).items())}
        for split, rows in examples.groupby("split")
    }
    return {
        "examples": dict(Counter(examples["split"].tolist()).most_common()),
        "bytes": sum(examples["bytes"].tolist()),
        "class_balance": balance,
        "rejected": len(rejects),
        "reject_reasons": dict(reasons),
        "notes": dict(notes),
        "empty_classes": list(getattr(found, "empty_classes", ())),
    }


def _check_usable(stats: dict, classes: Sequence[str]) -> None:
    train = stats["examples"].get("train", 0)
    if train == 0:
        raise UnusableDataset("no example is left for training; see data.split and the rejected examples")
    if len(classes) < 2:  # noqa: PLR2004
        raise UnusableDataset(f"there is a single class, {classes[0]}; a classifier needs at least two class folders or labels")
    if stats["examples"].get("validation", 0) == 0:
        raise UnusableDataset(f"none of the {train} examples fell into the validation split; raise data.split.validation or add data")


def main() -> None:
    """Look at every example of the source, refuse the unusable ones with a reason, write data/manifest/."""
    with door(main) as params:
        manifest = ingest(params.data, Layout().manifest)
        stats = manifest.stats
        counts = ", ".join(f"{count:,} {split}" for split, count in stats["examples"].items())
        say(f"ingest: {counts}; {len(manifest.classes)} classes, {stats['bytes'] / 1e6:,.1f} MB, {stats['rejected']} rejected")
        for reason, count in {**stats["reject_reasons"], **stats["notes"]}.items():
            say(f"  {count} × {reason}")
        for name in stats["empty_classes"]:
            say(f"  class folder {name} holds no image and is left out")


if __name__ == "__main__":
    main()
