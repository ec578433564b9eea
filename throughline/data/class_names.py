"""Checks, joins and leaves out the classes of a dataset, and compares them between splits."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from throughline.data.encodings.labels import UNLABELED
from throughline.data.found import Rejected
from throughline.data.tables.column_kinds import list_marks
from throughline.settings import DataSettings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.errors import UnreadableSource, UnusableDataset

_UNLISTABLE = ("Cc", "Zl", "Zp")  # controls, and separators of lines and paragraphs
_SHOWN = 3
_UNKNOWN = ("none", "unknown", "missing", "undefined", "unlabeled", "not available")
_ALIKE = "Some classes differ only by case: set data.same_labels: ignore_case"
_OTHERS = "Correct the splits or the labels of these examples"
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")  # a number's sign is not a mark to ignore
_DECIMAL = re.compile(r"\d+,\d+")
_MARKS = str.maketrans("", "", " \t-_\u2013\u2014")


def drop_odd_classes(
    rows: pd.DataFrame, classes: Sequence[str]
) -> tuple[pd.DataFrame, tuple[str, ...], list[Rejected]]:
    """Reject examples whose class name is blank or cannot be printed on one line."""
    odd = {name: reason for name in classes if (reason := _find_problem(name))}
    if not odd:
        return rows, tuple(classes), []
    wrong = rows["label"].isin(list(odd))
    named = zip(rows["id"][wrong], rows["label"][wrong], strict=True)
    rejected = [Rejected(id=example_id, reason=odd[name]) for example_id, name in named]
    return rows.loc[~wrong], tuple(name for name in classes if name not in odd), rejected


def refuse_alike(path: str, what: str, names: Sequence[str]) -> None:
    """Raise UnreadableSource if two names differ only in Unicode normalization.

    Such names look the same: macOS, for example, stores é as two characters, and Linux as one.
    """
    spelled: dict[str, str] = {}
    for name in names:
        if (other := spelled.setdefault(unicodedata.normalize("NFC", name), name)) != name:
            raise UnreadableSource(
                f"{path}: two {what} both look like {name} but differ in Unicode, {other!a}"
                f" and {name!a}; give them one name"
            )


def refuse_joined(classes: Sequence[str], settings: DataSettings) -> None:
    """Refuse names such as `cat|dog` of several classes that exist; not those of folders."""
    if settings.label_kind == "class" or not SOURCES[settings.source].label_kind:
        return
    for mark in "|;,":
        parts = {name: [part.strip() for part in name.split(mark)] for name in classes}
        joined = [name for name in classes if parts[name][1:] and {*parts[name]} <= {*classes}]
        # 1,5 is a number where 1 and 5 are, too.
        if len(joined) >= _SHOWN and not all(map(_DECIMAL.fullmatch, joined)):
            raise UnreadableSource(
                f"{settings.path}: {len(joined):,} of {len(classes):,} classes join others, such as"
                f" {joined[0]}; several labels of one example are not supported",
                "leave one label in each cell, or set data.label_kind: class to make a class of"
                " each combination",
            )


def find_alike(what: str, names: Sequence[str], remedy: str) -> list[str]:
    """Return a warning if names differ only by case, blanks, dashes, underscores or a final dot."""
    groups = [group for group in _group_alike(names, "ignore_marks") if len(group) > 1]
    if not groups:
        return []
    shown = "; ".join(" and ".join(map(repr, group)) for group in groups[:_SHOWN])
    more = " …" if len(groups) > _SHOWN else ""
    return [f"{what} that differ only by case, blanks or marks: {shown}{more}; {remedy}"]


def find_unlabeled(balance: Mapping[str, Mapping[str, int]], settings: DataSettings) -> list[str]:
    """Return a warning about classes named as if a label were missing; not for class folders."""
    counts, kind = sum(map(Counter, balance.values()), Counter()), SOURCES[settings.source]
    marks = list_marks(counts, *_UNKNOWN) if kind.label_kind else []
    if not marks:
        return []
    where = f"column {settings.label_columns[0]}: " if kind.in_table else ""
    named = ", ".join(f"{name} ({counts[name]:,} examples)" for name in marks)
    remedy = f"data.leave_out: {marks} leaves these out"
    return [f"{where}classes named as if there were no label: {named}; {remedy}"]


def join_alike(
    rows: pd.DataFrame, classes: Sequence[str], how: str
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Give classes that are the same by `how` (`data.same_labels`) their most frequent name."""
    counts = Counter(rows["label"].tolist())
    name_of = {
        name: max(group, key=lambda one: (counts[one], one))
        for group in _group_alike(classes, how)
        for name in group
    }
    joined = tuple(dict.fromkeys(name_of[name] for name in classes))
    return rows.assign(label=[name_of.get(name, name) for name in rows["label"]]), joined


def _group_alike(names: Sequence[str], how: str) -> list[list[str]]:
    """Group names that are the same by `how`, in order.

    >>> _group_alike(["Cat", "cat", "cat.", "dog"], "ignore_case")
    [['Cat', 'cat'], ['cat.'], ['dog']]
    >>> _group_alike(["New-York", "new york.", "C", "C++"], "ignore_marks")
    [['New-York', 'new york.'], ['C'], ['C++']]
    >>> _group_alike(["-1", "1"], "ignore_marks")
    [['-1'], ['1']]
    """
    groups = defaultdict[str, list[str]](list)
    for name in names:
        key = name if how == "exact" else name.casefold()
        if how == "ignore_marks" and not _NUMBER.fullmatch(name):
            key = key.rstrip(".").translate(_MARKS) or key
        groups[key].append(name)
    return list(groups.values())


def leave_out(
    rows: pd.DataFrame, classes: Sequence[str], names: Sequence[str]
) -> tuple[pd.DataFrame, tuple[str, ...], dict[str, int]]:
    counts = Counter(rows["label"][rows["label"].isin(names)].tolist())
    return (
        rows.loc[~rows["label"].isin(names)],
        tuple(name for name in classes if name not in names),
        {f"data.leave_out: {name}": count for name, count in counts.items()},
    )


def leave_out_unlabeled(
    rows: pd.DataFrame, classes: Sequence[str], settings: DataSettings
) -> tuple[pd.DataFrame, tuple[str, ...], dict[str, int]]:
    """Drop and count the examples whose label -1 means that they have no label.

    -1 has this meaning if the source lists classes without it, or if the other classes are several
    numbers from 0 or 1 on and `data.label_kind` is not `class`; never in class folders.

    Raises:
      UnreadableSource: labels are -1, 0 and 1, and -1 is so frequent that it may be a class.
    """
    minus_one = {name for name in {*rows["label"], *classes} if _is_minus_one(name)}
    marked = rows["label"].isin([*minus_one]).to_numpy()
    others = [name for name in classes if name not in minus_one]
    numbers = sorted(int(float(name)) for name in others if _is_whole(name))
    numbered = len(numbers) == len(others) > 1 and numbers[0] in (0, 1)
    named = not minus_one.intersection(classes)
    asked = SOURCES[settings.source].label_kind and (named or settings.label_kind != "class")
    if not (asked and marked.any() and (named or numbered)):
        return rows, tuple(classes), {}
    # In a split that has no other label, -1 certainly means a missing label.
    seen = rows["split"].isin(rows["split"][~marked].tolist()).to_numpy()
    counts = Counter(rows["label"][~marked].tolist())
    if numbers == [0, 1] and not named and 2 * (marked & seen).sum() >= min(counts.values()):
        raise UnreadableSource(
            f"{settings.path}: labels are -1, 0 and 1, and -1 may be a class or mean that a label"
            " is missing",
            f"set data.label_kind: class, or data.leave_out: ['{UNLABELED}']",
        )
    kept = "" if named else "; data.label_kind: class makes it a class"
    reason = f"label -1, which is read as a missing label{kept}"
    return rows.loc[~marked], tuple(others), {reason: int(marked.sum())}


def _is_whole(name: str) -> bool:
    return _NUMBER.fullmatch(name) is not None and float(name) % 1 == 0


def _is_minus_one(name: str) -> bool:
    return _is_whole(name) and float(name) == float(UNLABELED)


def check_left_out(settings: DataSettings, left_out: Mapping[str, int]) -> None:
    """Raise UnreadableSource for a name in `data.leave_out` that leaves nothing out."""
    for name in settings.leave_out:
        if f"data.leave_out: {name}" not in left_out:
            raise UnreadableSource(
                f"{settings.path}: data.leave_out: {name} fits no folder, file or class; correct it"
            )


def compare_splits(
    balance: Mapping[str, Mapping[str, int]], given: Collection[str], path: str
) -> list[str]:
    """Return warnings about classes that the training split or a `given` split lacks.

    `balance` is the number of examples by split and class; `given` are the source's own splits.

    Raises:
      UnusableDataset: a held-out split has no class of the training split.
    """
    trained, warnings = balance["train"], []
    held = {split: counts for split, counts in balance.items() if split != "train"}
    for split, counts in held.items():
        if not counts.keys() & trained.keys():
            raise UnusableDataset(
                f"{path}: the {split} split has no class that is trained on: it holds"
                f" {sum(counts.values()):,} examples of {_name_some(counts)}; these cannot be used"
                f" to evaluate a model. {_ALIKE if _fold(counts) & _fold(trained) else _OTHERS}"
            )
        if split in given and (missing := _without(trained, counts)):
            warnings.append(
                f"the {split} split lacks {len(missing)} of the {len(trained)} classes that are"
                f" trained on: {_name_some(missing)}"
            )
    everywhere = sum(map(Counter, held.values()), Counter())
    if untrained := _without(everywhere, trained):
        warnings.append(
            f"training lacks {len(untrained)} of the {len(everywhere)} classes of other splits:"
            f" {_name_some(untrained)}"
        )
    return warnings


def _fold(names: Collection[str]) -> set[str]:
    return {name.casefold() for name in names}


def _without(counts: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name not in others}


def _name_some(counts: Mapping[str, int]) -> str:
    named = [f"{name} ({count:,} examples)" for name, count in [*counts.items()][:_SHOWN]]
    return f"{', '.join(named)}{' …' if len(counts) > _SHOWN else ''}"


def _find_problem(name: str) -> str | None:
    if not name.strip():
        return "label missing"
    if any(unicodedata.category(character) in _UNLISTABLE for character in name):
        what = "a line break" if len(name.splitlines()) > 1 else "characters that cannot be printed"
        return f"the class name {name!r} has {what}"
    return None
