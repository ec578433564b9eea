"""The splits that names of folders and files say: whole names of class folders, words in the names
of shards and files of lines. Not a source itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from throughline.shared.errors import UnreadableSource

# Names of folders and words of names, in lower case, and the splits that they mean. Some say `eval`
# of what they validate with, others of what they test with: nobody trains on it.
SPLITS_BY_WORD: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "holdout"), "test"),
}


def find_split(name: str) -> str | None:
    """The split that the path of a file names, by its last part that names one; None where none
    does.

    Raises:
      UnreadableSource: that part names two.

    >>> find_split("imagenet/train-00012-of-01024"), find_split("val/part-7.tfrecord")
    ('train', 'validation')
    >>> find_split("training_data.tfrecord"), find_split("contest.tfrecord")
    ('train', None)
    """
    for part in reversed(name.lower().split("/")):
        words = {word: SPLITS_BY_WORD.get(word) for word in re.findall(r"[a-z]+", part)}
        splits = {word: split for word, split in words.items() if split}
        if len({*splits.values()}) > 1:
            raise UnreadableSource(
                f"{name} may be of several splits: its name holds {' and '.join(splits)}; rename"
                " it so that it holds one of these words, or none of them"
            )
        if splits:
            return next(iter(splits.values()))
    return None


def find_splits(root: Path, names: Sequence[str], remedy: str = "") -> list[str | None]:
    """The split of each file below a root, by its path there, with that of training left open as
    `leave_validation_open` does; None for all where no name says one. `remedy`: what else can be
    done about names that are refused.

    Raises:
      UnreadableSource: only some names say a split, one says two, or they say them within words.
    """
    splits = [find_split(name) for name in names]
    if not any(splits):
        _refuse_glued(root, names, remedy)
    if None in splits and any(splits):
        named = next(name for name, split in zip(names, splits, strict=True) if split)
        raise UnreadableSource(
            f"{root}: {named} is named as a split, {names[splits.index(None)]} is not; rename them"
            f" so that all names, or none, hold a word such as train, validation or test{remedy}"
        )
    return leave_validation_open(splits)


def _refuse_glued(root: Path, names: Sequence[str], remedy: str) -> None:
    """Refuse names that differ by `train` and another split within a word, as traindata and
    testdata do: what is for testing would be trained on.
    """
    kinds = {re.sub(r"\d+", "", name.lower()): name for name in names}
    for kind, name in kinds.items():
        for split in SPLITS_BY_WORD if "train" in kind else ():
            other = kinds.get(kind.replace("train", split))
            if split != "train" and other:
                raise UnreadableSource(
                    f"{root}: {name} and {other} seem to be splits, which their names say within a"
                    f" word; rename them, such as train-data and test-data{remedy}"
                )


def leave_validation_open(splits: Sequence[str | None]) -> list[str | None]:
    """Leave the split of what is for training open where nothing is for validation, so that some of
    its examples are assigned to it.
    """
    if "validation" in splits:
        return list(splits)
    return [None if split == "train" else split for split in splits]
