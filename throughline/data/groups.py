"""Examples of one person, video or place: they are in one split, or a model is judged by what it
has nearly seen.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

_PATTERN = r"([^/]*\d[^/]*)[-_. ][^-_. /]*\d\.\w+$"  # all but the last number of a file's name
_MOST_OTHERS = 0.1  # share of names that are not of the pattern
_LEAST_OF_ONE = 3  # examples that share a beginning, on average
_SHOWN = 3


def read_groups(
    ids: Sequence[str], named: Mapping[str, str], settings: DataSettings
) -> list[str] | None:
    """The group of each example, by its id: as `named`, or as `data.group` finds it in the id; None
    where examples have none.

    Raises:
      UnreadableSource: `data.group` is no regular expression with a group, or an id does not match.
    """
    if not settings.group:
        return None
    if named:
        return [named[name] for name in ids]
    key = f"data.group: {settings.group}"
    try:
        pattern = re.compile(settings.group)
    except re.error as error:
        raise UnreadableSource(f"{key} is no regular expression: {error}") from error
    if pattern.groups != 1:
        raise UnreadableSource(f"{key} names no column; of a regular expression, it needs a (…)")
    found = [pattern.search(name) for name in ids]
    if None in found:
        raise UnreadableSource(
            f"{key} is found in {len(ids) - found.count(None):,} of {len(ids):,} ids, and not in"
            f" {ids[found.index(None)]}"
        )
    return [one[1] for one in found if one]


def find_crossing(groups: Sequence[str], splits: Sequence[str]) -> list[str]:
    """What to warn of where the source itself puts one group into several splits."""
    counts = Counter(group for group, _ in {*zip(groups, splits, strict=True)})
    names = sorted(name for name, count in counts.items() if count > 1)
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return [f"{len(names):,} groups are in several splits, as the source names these: {shown}"]


def find_name_groups(ids: Sequence[str], classes: int) -> list[str]:
    """What to warn of where names of files look like those of several files of one person or video,
    more of them than `classes`.
    """
    groups, pattern = defaultdict[str, list[str]](list), re.compile(_PATTERN)
    for name in ids:
        if found := pattern.search(name, name.rfind("/") + 1):
            groups[found[1]].append(name)
    matching = sum(map(len, groups.values()))
    if (
        matching < (1 - _MOST_OTHERS) * len(ids)
        or len(groups) < max(2, 2 * classes)
        or matching < _LEAST_OF_ONE * len(groups)
    ):
        return []
    one, other = max(groups.values(), key=len)[:2]
    return [
        f"names such as {one} and {other} may be of one person or video, and {len(groups):,} of"
        f" these be in training and held out; data.group: '{_PATTERN}' keeps them together"
    ]
