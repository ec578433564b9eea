"""Groups of examples, such as all of one person, video or place, which must be in one split.

Otherwise a model is judged by examples that are much like those of its training.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from throughline.settings import DataSettings
from throughline.shared.errors import UnreadableSource

_PATTERN = r"([^/]*\d[^/]*)[-_. ][^-_. /]*\d\.\w+$"  # a file's name up to its last number
_MOST_OTHERS = 0.1  # largest share of names that do not match
_LEAST_OF_ONE = 3  # fewest examples in a group, on average
_SHOWN = 3


def read_groups(
    ids: Sequence[str], named: Mapping[str, str], settings: DataSettings
) -> list[str] | None:
    """Return the group of each example by its id, or None if `data.group` is empty.

    Groups are those of `named`, or else the texts that the regular expression `data.group` captures
    in ids. An example with an empty group is in none.

    Raises:
      UnreadableSource: `data.group` is neither a column nor a regular expression with one capture
        group, or an id does not match.
    """
    if not settings.group:
        return None
    if named:
        return [named[name] for name in ids]
    key = f"data.group: {settings.group}"
    try:
        pattern = re.compile(settings.group)
    except re.error as error:
        raise UnreadableSource(f"{key} is not a regular expression: {error}") from error
    if pattern.groups != 1:
        raise UnreadableSource(f"{key} names no column; a regular expression needs one group (…)")
    found = [pattern.search(name) for name in ids]
    if None in found:
        raise UnreadableSource(
            f"{key} matches {len(ids) - found.count(None):,} of {len(ids):,} ids, but not"
            f" {ids[found.index(None)]}; correct the regular expression"
        )
    return [one[1] for one in found if one]


def find_crossing(groups: Sequence[str], splits: Sequence[str]) -> list[str]:
    """Return a warning if the source itself puts a group into several splits."""
    counts = Counter(group for group, _ in {*zip(groups, splits, strict=True)} if group)
    names = sorted(name for name, count in counts.items() if count > 1)
    if not names:
        return []
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return [f"the source puts {len(names):,} groups into several splits: {shown}"]


def find_name_groups(ids: Sequence[str], classes: int) -> list[str]:
    """Return a warning if file names suggest many groups of files, each of one person or video."""
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
        f"names such as {one} and {other} may be of one person or video; {len(groups):,} such"
        f" groups may be in several splits; data.group: '{_PATTERN}' prevents this"
    ]
