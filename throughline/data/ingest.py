"""Ingest: builds the manifest of a dataset from its source.

It examines every example once, rejects unusable ones with a reason, drops duplicates and assigns
splits. So in later stages, images decode, labels exist, and splits are fixed and share no copies.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from throughline.data import sources
from throughline.data.class_names import (
    check_left_out,
    compare_splits,
    drop_odd_classes,
    find_alike,
    find_unlabeled,
    join_alike,
    leave_out,
    leave_out_unlabeled,
    refuse_alike,
    refuse_joined,
)
from throughline.data.contact_sheet import write_sheet
from throughline.data.encodings.base import FileEncoding, Reason
from throughline.data.examination import Examined, Folder, examine, open_values_file
from throughline.data.found import Files, Rejected, find_suffix
from throughline.data.glance import find_problems, tabulate, write_glance
from throughline.data.groups import find_crossing, find_name_groups, read_groups
from throughline.data.local_files import LocalFiles
from throughline.data.manifest import (
    COLUMNS,
    SPLITS,
    TABLE_INPUT,
    VALUES,
    Manifest,
    write_manifest,
)
from throughline.data.rejects import check_rejects
from throughline.data.shards.records import example_key
from throughline.data.split_names import find_left_out, leave_validation_open
from throughline.data.splits import assign_split
from throughline.data.tables.table_columns import fill_medians
from throughline.plan.schema import Schema, find_encoding
from throughline.settings import DataSettings, SplitSettings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.errors import UnusableDataset
from throughline.shared.files import digest_json, resumable_folder
from throughline.shared.program import digest_program


def ingest(
    settings: DataSettings, out: Path, *, inspections: Path | None = None, verify: bool = False
) -> Manifest:
    """Write the manifest of the dataset that `settings` describes into the folder `out`.

    `out` is replaced only when the manifest is complete. The folder `inspections`, if given, caches
    the findings in files: files that have not changed since are not read again, unless `verify` is
    set. The manifest is the same either way.

    Raises:
      DataNotFound, UnreadableSource: the source is missing, is not what `settings` says, or changes
        while it is read.
      ObjectStoreFailed: the bucket of the source cannot be read, or changes while it is read.
      TooManyRejects: more than `max_reject_fraction` of the examples are unusable.
      UnusableDataset: the usable examples do not suffice to train and evaluate a model.
      DiskRefused, UnexpectedFiles: a bucket's copy does not fit; an object has its folder's name.
    """
    key = digest_json([settings.model_dump(), digest_program("ingest")])
    with (
        sources.open_source(settings, out=out) as (source, listed),
        resumable_folder(out, key=key) as folder,
    ):
        where = Folder(path=folder, final=out, inspections=inspections, verify=verify)
        found = examine(source, where, settings)
        alike = _compare_categories(found.schema, settings.path)
        total = len(found.rows) + len(found.rejected)
        # `place` is a row's position in `found.columns`.
        found = replace(found, rows=found.rows.assign(place=np.arange(len(found.rows))))
        found, dropped = _settle_classes(found, settings)
        if not found.schema.is_series:
            splits = leave_validation_open(found.rows["split"].tolist())
            found = replace(found, rows=found.rows.assign(split=[each or "" for each in splits]))
        found = _reject_duplicates(found, settings)
        classes, given = found.classes, set(found.rows["split"])
        rejects = _list_rejects(found.rejected)
        check_rejects(rejects, total=total, limit=settings.max_reject_fraction, folder=folder)
        named = source.groups
        if "group" in found.rows and any(found.rows["group"]):  # of texts
            named = dict(zip(found.rows["id"], found.rows["group"], strict=True))
        groups = read_groups(found.rows["id"].tolist(), named, settings)
        examples = _table(found, groups, settings.split)
        schema = _complete_tables(found, source, examples, folder)
        examples = examples.drop(columns="place")
        stats = _stats(examples, classes, rejects, found, source)
        stats["left_out"] |= dropped
        if found.cuts:
            stats["cuts"] = list(found.cuts)
        check_left_out(settings, stats["left_out"])
        left = None
        if _has_classes(schema) and settings.label_kind != "none":
            left = [classes[number] for number in sorted(set(examples["label"]))]
        _check_usable(stats, given, classes=left)
        if left is not None:
            balance = stats["class_balance"]
            stats["warnings"] += compare_splits(balance, given, settings.path)
            alike += find_alike("classes", left, "data.same_labels: ignore_marks makes them one")
            alike += find_unlabeled(balance, settings)
        stats["warnings"] += [*alike, *_find_torn_groups(found, examples, groups, source)]
        if isinstance(source, Files) and isinstance(listed, LocalFiles):
            stats["warnings"] += _find_unlisted(source, listed, settings)
        stats["problems"] = find_problems(stats, of_table=SOURCES[settings.source].label_kind)
        manifest = Manifest(
            examples=examples,
            classes=classes,
            schema=schema,
            rejected=rejects.drop(columns="cause"),
            stats=stats,
            folder=folder,
        )
        table = tabulate(manifest)
        write_glance(manifest, table)
        write_sheet(manifest, [*map(str, table.index)], out=out)
        listed.check_unchanged()
        write_manifest(manifest)
    return replace(manifest, folder=out)


def _find_unlisted(source: Files, listed: LocalFiles, settings: DataSettings) -> list[str]:
    """Return a warning about images next to a table that no row of it names."""
    if settings.source != "image_table" or source.column:
        return []
    known = {str(file.path) for file in source.files}
    known |= {str(source.root / reject.id.partition(": ")[2]) for reject in source.rejected}
    suffixes = cast("FileEncoding", find_encoding(source.encoding)).suffixes
    others = [
        name
        for name in listed.names()
        if find_suffix(name) in suffixes and name not in known
        if not find_left_out(os.path.relpath(name, source.root), settings.leave_out)
    ]
    count = f"{len(others):,} images are" if others[1:] else "1 image is"
    return [f"{count} in no row of the table, such as {min(others)}"] if others else []


def _compare_categories(schema: Schema, path: str) -> list[str]:
    """Refuse categories that look the same; return warnings about those that look alike."""
    alike: list[str] = []
    for words in schema.columns.categories:
        refuse_alike(path, "categories", words)
        alike += find_alike("categories", words, "correct them in the table")
    return alike


def _has_classes(schema: Schema) -> bool:
    return bool(schema.target) and not schema.predicts_number


def _settle_classes(found: Examined, settings: DataSettings) -> tuple[Examined, dict[str, int]]:
    """Clean up the classes; return the rest, and the numbers of left-out examples by reason."""
    if not _has_classes(found.schema):
        return found, {}
    # Blanks around a name are invisible: `cat` and `cat ` are one class.
    rows = found.rows.assign(label=[name.strip() for name in found.rows["label"]])
    classes = tuple(dict.fromkeys(name.strip() for name in found.classes))
    refuse_alike(settings.path, "classes", classes)
    rows, classes, unnamed = drop_odd_classes(rows, classes)
    rows, classes, dropped = leave_out(rows, classes, settings.leave_out)
    refuse_joined(classes, settings)
    rows, classes, unlabeled = leave_out_unlabeled(rows, classes, settings)
    rows, classes = join_alike(rows, classes, settings.same_labels)
    rejected = [*found.rejected, *unnamed]
    return replace(found, rows=rows, classes=classes, rejected=rejected), dropped | unlabeled


def _reject_duplicates(found: Examined, settings: DataSettings) -> Examined:
    """Reject examples with the same bytes as another one; warn about those with another label.

    Of several copies, the one in the test split is kept, else one in validation, so that training
    never sees a held-out example. With `data.duplicates: keep`, and for rows of numbers, where
    equal rows are separate observations, copies are rejected only if the source puts them into
    different splits, or if an id is listed twice: two rows of one id are one example, whatever the
    labels. Rows are compared by position, because an id may be listed twice.
    """
    if found.schema.is_series:
        return found
    keep = settings.duplicates == "keep" or found.schema.input.encoding.modality == "numbers"
    rows = found.rows
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
    dropped, unlike = [], []
    for number in np.flatnonzero(doubled).tolist():
        row, earlier = rows.iloc[number], firsts.iloc[number]
        if earlier["label"] != row["label"]:
            unlike.append(f"{row['id']} as {row['label']}, {earlier['id']} as {earlier['label']}")
        same = earlier["id"] == row["id"]
        what = ("listed twice", "") if same else ("duplicate", f" of {earlier['id']}")
        notes = [f"labeled {earlier['label']}"] if earlier["label"] != row["label"] else []
        if earlier["split"] not in ("", "train", row["split"]):
            notes.append(f"in the {earlier['split']} split")
        reason = Reason(what[0], ", ".join([what[1], *(f"there {note}" for note in notes)]))
        dropped.append(Rejected(id=row["id"], reason=reason))
    rejected = sorted([*found.rejected, *dropped], key=lambda item: _in_natural_order(item.id))
    warnings = [*found.warnings]
    if unlike:
        warnings.append(
            f"in {len(unlike):,} cases, a rejected duplicate and the example kept differ in label,"
            f" such as {unlike[0]}; correct the labels, or leave both examples out"
        )
    return replace(found, rows=rows.loc[~doubled], rejected=rejected, warnings=warnings)


def _in_natural_order(text: str) -> list[str | int]:
    """Return a sort key that puts row 2 before row 14.

    >>> sorted(["row 14", "row 2", "9", "٣"], key=_in_natural_order)
    ['9', 'row 2', 'row 14', '٣']
    """
    parts = re.split(r"([0-9]+)", text)  # every second part is a number
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _list_rejects(rejected: Sequence[Rejected]) -> pd.DataFrame:
    def make_printable(text: str) -> str:
        return " ".join(text.encode("utf-8", "backslashreplace").decode().splitlines())

    items = [(item.id, item.reason, item.cause) for item in rejected]
    return pd.DataFrame(items, columns=["id", "reason", "cause"]).map(make_printable)


def _table(found: Examined, groups: list[str] | None, split: SplitSettings) -> pd.DataFrame:
    """Add keys, number classes, and assign open splits by groups or, without any, by digests.

    If the source has a test split of its own, no other example is assigned to it.
    """
    rows, ids = found.rows, found.rows["id"].tolist()
    number = {name: index for index, name in enumerate(found.classes)}
    shares = {"validation": split.validation} | (
        {} if "test" in rows["split"].tolist() else {"test": split.test}
    )
    groups = groups or [""] * len(ids)
    assigned = [
        given or assign_split(group or digest, shares=shares, seed=split.seed)
        for given, group, digest in zip(rows["split"], groups, rows["digest"], strict=True)
    ]
    labels = [number[label] for label in rows["label"]] if number else rows["label"]
    keys = rows["row"].tolist() if found.schema.is_series else [*map(example_key, ids)]
    _check_unique(keys, ids)
    numbered = rows.assign(key=keys, label=labels, split=assigned)
    table = pd.DataFrame(numbered, columns=[*COLUMNS, "place"])
    return table.sort_values(by="id", ignore_index=True)


def _complete_tables(
    found: Examined, source: sources.Source, examples: pd.DataFrame, folder: Path
) -> Schema:
    """Write a table's columns with training medians in empty cells; return the new schema."""
    schema, train = found.schema, np.flatnonzero(examples["split"] == "train")
    if found.columns is not None:
        values, file = found.columns[examples["place"].to_numpy()], TABLE_INPUT
    elif isinstance(source, sources.Arrays) and schema.columns.medians:
        values, file, train = np.asarray(source.values), VALUES, examples["row"].to_numpy()[train]
    else:
        return schema
    values, columns, notes = fill_medians(values, schema.columns, train)
    found.notes.update(notes)
    with open_values_file(folder / file, values) as copy:
        copy.write(values.data)
    return schema.with_columns(columns)


def _check_unique(keys: Sequence[int], ids: Sequence[str]) -> None:
    """Refuse equal keys; two 63-bit keys agree by chance once in billions of billions of pairs."""
    numbers = np.asarray(keys, np.int64)
    order = np.argsort(numbers, kind="stable")
    twice = np.flatnonzero(np.diff(numbers[order]) == 0)
    if twice.size:
        one, other = sorted(order[twice[0] : twice[0] + 2])
        raise UnusableDataset(
            f"the examples {ids[one]} and {ids[other]} have the same key; rename one of them"
        )


def _stats(
    examples: pd.DataFrame,
    classes: Sequence[str],
    rejects: pd.DataFrame,
    found: Examined,
    source: sources.Source,
) -> dict:
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
        "reject_reasons": dict(Counter(rejects["cause"])),
        "notes": {**found.notes, **source.notes},
        "features": dict(source.features),
        "skipped": dict(source.skipped),
        "left_out": dict(source.left_out),
        "dialect": [*source.dialect, *found.dialect],
        "warnings": [*source.warnings, *found.warnings],
        "columns": [asdict(reading) for reading in (*source.readings, *found.readings)],
        "empty_classes": list(source.empty_classes),
    }


def _find_torn_groups(
    found: Examined, examples: pd.DataFrame, groups: list[str] | None, source: sources.Source
) -> list[str]:
    """Return a warning if groups are in several splits, or if file names suggest such groups."""
    ids, rows = examples["id"].tolist(), found.rows
    if groups is not None:
        by_id = dict(zip(rows["id"], groups, strict=True))
        return find_crossing([by_id[name] for name in ids], examples["split"].tolist())
    if "" in set(rows["split"]) and isinstance(source, Files):
        return find_name_groups(ids, len(found.classes))
    return []


def _check_usable(stats: dict, given: Collection[str], *, classes: Sequence[str] | None) -> None:
    """Refuse data without training or validation examples, or with a single class.

    `given` are the splits that the source names, with "" if some are open; `classes` have examples.
    """
    train = stats["examples"].get("train", 0)
    own = bool(given) and "" not in given
    if train == 0:
        remedy = (
            "the source names the split of every example, in a column, folder or file name: name"
            " some `train`"
            if own
            else "lower the shares in data.split"
        )
        raise UnusableDataset(
            f"no example is left for training; {remedy}, and check the rejected examples"
        )
    if classes is not None and len(classes) < 2:  # noqa: PLR2004
        raise UnusableDataset(
            f"there is a single class, {classes[0]}; a classifier needs at least two class folders"
            " or labels; if names of files hold the class, data.layout says where"
        )
    if stats["examples"].get("validation", 0) == 0:
        raise UnusableDataset(
            f"no example fell into the validation split, and {train:,} into the train split; raise"
            " data.split.validation or, if the source names the splits, add validation examples"
        )
