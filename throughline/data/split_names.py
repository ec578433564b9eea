"""Reads splits from names of folders and files: `train`, `val2017`, `TestImages`, `seg_test`."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from throughline.shared.errors import UnreadableSource

# Words of names, in lower case, and the splits that they mean. `eval` means validation to some
# people and test to others; nobody trains on it.
SPLITS_BY_WORD: Mapping[str, str] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "holdout"), "test"),
}
UNLABELED = "unlabeled"  # in place of a split; its files can neither train nor evaluate a model
# Words beside a split's word that do not name a class.
_NEUTRAL = {
    *("set", "sets", "data", "dataset", "split", "part", "folder", "dir", "file", "files"),
    *("image", "images", "img", "imgs", "pic", "pics", "photo", "photos", "picture", "pictures"),
    *("text", "texts", "sample", "samples", "example", "examples", "x", "y"),
}
_MEANINGS = {
    **SPLITS_BY_WORD,
    **dict.fromkeys(("unlabeled", "unlabelled", "unsup", "unsupervised"), UNLABELED),
    **dict.fromkeys(("pred", "predict", "prediction", "inference"), UNLABELED),
}
_PART = re.compile(r"(-\d+-of-\d+)?(\.\w+)*$")  # end of the name of a split's file
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@dataclass(frozen=True, kw_only=True)
class SplitName:
    """The split in a name, or `UNLABELED`; None if the name has no split or several.

    `words` are the words that mean the split; `rest` has the others, without words like `images`.
    """

    split: str | None
    rest: str
    words: tuple[str, ...] = ()


def read_name(name: str) -> SplitName:
    """Find the split that a word of a name means; the word may be joined to one like `images`.

    >>> read_name("TrainImages").split, read_name("val2017").split, read_name("contest").split
    ('train', 'validation', None)
    >>> read_name("testset").split, read_name("cats_train")
    ('test', SplitName(split='train', rest='cats', words=('train',)))
    """
    found: dict[str, str] = {}
    rest = name
    for word in WORD.findall(name):
        meaning = _find_meaning(word.lower())
        if meaning:
            found[word] = meaning
        if meaning or word.lower() in _NEUTRAL:
            rest = rest.replace(word, " ", 1)
    rest = " ".join(re.sub(r"[\W_]+", " ", rest).split())
    return SplitName(
        split=next(iter(found.values())) if len({*found.values()}) == 1 else None,
        rest="" if rest.isdigit() else rest,
        words=tuple(found),
    )


def _find_meaning(word: str) -> str | None:
    if word in _MEANINGS:
        return _MEANINGS[word]
    for known, meaning in _MEANINGS.items():
        if known in word and (
            word.removeprefix(known) in _NEUTRAL or word.removesuffix(known) in _NEUTRAL
        ):
            return meaning
    return None


def find_split(name: str) -> str | None:
    """Return the split in the last part of a path that names one, or None; refuse a part with two.

    >>> find_split("imagenet/train-00012-of-01024"), find_split("val/part-7.tfrecord")
    ('train', 'validation')
    """
    for part in reversed(name.split("/")):
        named = read_name(part)
        if named.words and not named.split:
            raise UnreadableSource(
                f"{name} may be of several splits: its name holds {' and '.join(named.words)}",
                "rename it so that its name holds only one of these words, or none",
            )
        if named.split and named.split != UNLABELED:
            return named.split
    return None


def find_splits(
    root: Path,
    names: Sequence[str],
    leave_out: Sequence[str] = (),
    remedy: str = "",
    find: Callable[[str], str | None] = find_split,
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the split of each file that is read below a root, and the files that are left out.

    Splits come from the names: all are None if no name has one, and it is an error if only some do.
    Train may become None as by `leave_validation_open`. A file that is left out is mapped to its
    entry of `data.leave_out`; `unsup` also means `unsup-00000-of-00001.parquet`. `remedy` is added
    to errors about names, and `find` returns the split in a name.
    """
    left_out = {
        name: f"data.leave_out: {one}"
        for name in names
        if (one := find_left_out(name, leave_out) or find_left_out(_PART.sub("", name), leave_out))
    }
    names = [name for name in names if name not in left_out]
    splits = [find(name) for name in names]
    if left_out and not names:
        raise UnreadableSource(f"{root}: data.leave_out leaves out all of its files")
    if None in splits and any(splits):
        named = next(name for name, split in zip(names, splits, strict=True) if split)
        other = names[splits.index(None)]
        raise UnreadableSource(
            f"{root}: {named} is named as a split, but {other} is not",
            f"leave it out with data.leave_out: [{_PART.sub('', other)}], or rename them so that"
            f" all names, or none, hold a word such as train, validation or test{remedy}",
        )
    return dict(zip(names, leave_validation_open(splits), strict=True)), left_out


def split_files(
    root: Path,
    files: Sequence[Path],
    leave_out: Sequence[str],
    *,
    count: Callable[[Path], int],
    remedy: str = "",
    find: Callable[[str], str | None] = find_split,
) -> tuple[dict[Path, str | None], Counter[str]]:
    """Return files' splits as `find_splits` does, and numbers of left-out examples by entry."""
    base = root if root.is_dir() else root.parent
    names = [file.relative_to(base).as_posix() for file in files]
    splits, others = find_splits(root, names, leave_out, remedy, find)
    left_out = Counter[str]()
    for name, why in others.items():
        left_out[why] += count(base / name)
    return {base / name: split for name, split in splits.items()}, left_out


def leave_validation_open(splits: Sequence[str | None]) -> list[str | None]:
    """Replace train by None if no split is validation, so that ingest assigns some to it."""
    if "validation" in splits:
        return list(splits)
    return [None if split == "train" else split for split in splits]


def find_left_out(path: str, leave_out: Sequence[str]) -> str | None:
    """Return the first of these names, paths and patterns that fits a file or folder, or None.

    >>> find_left_out("train/unsup", ["unsup"]), find_left_out("train/pos", ["unsup", "train/neg"])
    ('unsup', None)
    >>> find_left_out("cat/1_mask.png", ["*_mask.png"])
    '*_mask.png'
    """
    parts, below = path.split("/"), f"{path}/"
    return next(
        (
            one
            for one in leave_out
            if below.startswith(f"{one}/")
            or any(part == one or fnmatchcase(part, one) for part in parts)
        ),
        None,
    )
