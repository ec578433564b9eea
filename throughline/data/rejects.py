"""Counts rejected examples by reason, and refuses too many of them with a remedy."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from throughline.shared.errors import TooManyRejects
from throughline.shared.layout import from_here

REJECTS_SHOWN = 5
_NEARLY_ALL = 0.8
# Remedies by the reason (a regular expression) that nearly all rejected examples have.
_REMEDIES: Mapping[str, str] = {
    "outside the data root": (
        "Links to files elsewhere, as in DVC's cache and in folders of model hubs, are read with"
        " data.follow_links: true, but not in runs from the UI. Or copy their targets: `cp -rL DATA"
        " COPY` and data.path: COPY. Not read are paths in a list that lead out of its folder, and"
        " files below links to folders."
    ),
    "link to nothing": (
        "Their targets are gone or were never fetched: `dvc pull` fetches files that DVC tracks,"
        " `git annex get .` those that git-annex tracks; download the others again."
    ),
    r"^not \S+: byte": (
        "Their bytes are of another encoding: set data.encoding, such as cp1252 or latin-1 for"
        " Western languages, utf-16 or shift_jis. It applies to all; convert other files, and"
        " lines in UTF-16: `iconv -f utf-16 -t utf-8 FILE > COPY`."
    ),
    "outside any class folder": ("Put them into class folders, or set data.leave_out: [{names}]."),
    "outside any split's folder": (
        "Put them into folders named train, validation or test, or set data.leave_out: [{names}]."
    ),
    "^its name is not as in": (
        "Set data.leave_out: [FOLDER] if their folder has no labels; else correct data.layout."
    ),
    "^duplicate of (?!.*, there )": (
        "Their bytes are those of other examples: remove them, or train on all with"
        " data.duplicates: keep."
    ),
    " there in the .* split$": (
        "They are copies of held-out examples: remove them from the other splits, or raise"
        " data.max_reject_fraction, and ingest drops them."
    ),
}


def check_rejects(rejects: pd.DataFrame, *, total: int, limit: float, folder: Path) -> None:
    """Refuse data if more than the share `limit` of its `total` examples is rejected.

    Before raising, writes `rejects` (id, reason, cause) to `rejected.csv`, without causes.

    Raises:
      TooManyRejects: counts rejects by cause, with a remedy for the one that nearly all have.
    """
    if len(rejects) <= limit * total:
        return
    rejects.drop(columns="cause").to_csv(folder / "rejected.csv", index=False)
    largest = sorted(rejects.groupby("cause"), key=lambda item: -len(item[1]))[:REJECTS_SHOWN]
    shown = "\n".join(f"  {_describe_kind(str(cause), rows)}" for cause, rows in largest)
    raise TooManyRejects(
        f"{len(rejects)} of {total} examples are unusable, {len(rejects) / total:.1%};"
        f" data.max_reject_fraction allows {limit:.1%}, {int(limit * total)} of them.\n{shown}\n"
        f"  all of them: {from_here(folder / 'rejected.csv')}\n"
        + (_find_remedy(rejects) or "Fix or remove them, or raise data.max_reject_fraction.")
    )


def _find_remedy(rejects: pd.DataFrame) -> str | None:
    """Return the remedy for the reason that nearly all rejects have, if there is one."""
    copies = Counter(filter(None, map(_find_copy, rejects["id"], rejects["reason"])))
    if copies and copies.most_common(1)[0][1] > _NEARLY_ALL * len(rejects):
        (copy, original), _ = copies.most_common(1)[0]
        return f"{copy} holds copies of the files of {original}: set data.leave_out: [{copy}]."
    for reason, remedy in _REMEDIES.items():
        ids = rejects["id"][rejects["reason"].str.contains(reason)]
        if len(ids) > _NEARLY_ALL * len(rejects):
            names = dict.fromkeys(Path(name).name for name in ids)
            some = ", ".join([*names][:REJECTS_SHOWN])
            return remedy.format(names=f"{some}{', …' if len(names) > REJECTS_SHOWN else ''}")
    return None


def _find_copy(name: str, reason: str) -> tuple[str, str] | None:
    """Return the folders of a duplicate and its original, if the rest of their paths agrees.

    None for copies of held-out examples, and for one file in two class folders.

    >>> _find_copy("more/train/a/1.png", "duplicate of train/a/1.png")
    ('more/train', 'train')
    """
    _, is_copy, original = reason.partition("duplicate of ")
    ours, theirs = name.split("/"), original.partition(", ")[0].split("/")
    same = 0
    for one, other in zip(reversed(ours), reversed(theirs), strict=False):
        if one != other:
            break
        same += 1
    same = min(same, len(theirs) - 1, len(ours) - 1)
    unlike = "labeled" in reason and same == 1  # one file in two class folders
    held_out = reason.endswith(" split")
    if not is_copy or not same or ours == theirs or unlike or held_out:
        return None
    return "/".join(ours[:-same]), "/".join(theirs[:-same])


def _describe_kind(cause: str, rows: pd.DataFrame) -> str:
    name, reason = rows[["id", "reason"]].iloc[0]
    detail = reason.removeprefix(cause).strip(":, ")
    return f"{len(rows)} × {cause}, such as {name}{f' ({detail})' if detail else ''}"
