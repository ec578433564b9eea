"""Names of classes: which cannot be listed, one per line, and which people cannot tell apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import pandas as pd

from throughline.data.sources.base import Rejected
from throughline.shared.errors import UnreadableSource

_UNLISTABLE = ("Cc", "Zl", "Zp")  # controls, and separators of lines and paragraphs


def drop_odd_classes(
    rows: pd.DataFrame, classes: Sequence[str]
) -> tuple[pd.DataFrame, tuple[str, ...], list[Rejected]]:
    """Drop examples whose class has a name that lists of names, one per line, cannot hold."""
    odd = {name: reason for name in classes if (reason := _find_problem(name))}
    if not odd:
        return rows, tuple(classes), []
    wrong = rows["label"].isin(list(odd))
    rejected = [
        Rejected(id=row["id"], reason=odd[row["label"]])
        for row in pd.DataFrame(rows[wrong]).to_dict("records")
    ]
    return pd.DataFrame(rows[~wrong]), tuple(name for name in classes if name not in odd), rejected


def refuse_alike(path: str, what: str, names: Sequence[str]) -> None:
    """Refuse names that are the same to people and to Unicode, and not as stored: macOS writes é as
    two characters, Linux as one.

    Raises:
      UnreadableSource: with both.
    """
    spelled: dict[str, str] = {}
    for name in names:
        if (other := spelled.setdefault(unicodedata.normalize("NFC", name), name)) != name:
            raise UnreadableSource(
                f"{path}: two {what} are both {name}, in two spellings of Unicode, {other!a}"
                f" and {name!a}; give them one name"
            )


def _find_problem(name: str) -> str | None:
    if not name.strip():
        return "label missing"
    if any(unicodedata.category(character) in _UNLISTABLE for character in name):
        what = "a line break" if len(name.splitlines()) > 1 else "characters that cannot be printed"
        return f"the class name {name!r} has {what}"
    return None
