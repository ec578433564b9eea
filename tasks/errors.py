"""Everything that can go wrong for a user: one class per situation, each saying what, where and what to do.

A `UserError` is shown as one paragraph without a traceback and ends the process with exit code 2.
Anything else is a bug and keeps its traceback. `docs/errors.md` is generated from these docstrings.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Base of all errors that a user can cause and can mend."""


class InvalidParams(UserError):
    """params.yaml (or an override) has unknown keys, wrong types or impossible combinations; all of them are listed."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(f"{heading} in the parameters:\n" + "\n".join(f"  - {problem}" for problem in self.problems))


class DataNotFound(UserError):
    """The data source is not where params.yaml says, or a known data set could neither be found nor downloaded."""


class UnreadableSource(UserError):
    """The source as a whole cannot be read: a table without the needed columns, arrays of unlike length, a broken archive."""


class TooManyRejects(UserError):
    """More examples were rejected than `data.max_reject_fraction` allows; the reasons are counted and the list is kept."""


class UnusableDataset(UserError):
    """What is left cannot train a model: no examples, a single class, or an empty split."""


class MissingInput(UserError):
    """A stage was started before the stage whose output it reads."""


class CorruptShard(UserError):
    """A TFRecord file is truncated, has a wrong checksum, or is not the file its index describes."""


class CorruptColumn(UserError):
    """A snapshot column has the wrong size or a chunk whose digest does not match its index."""


class StaleSnapshot(UserError):
    """The snapshot was made from other shards or by another preprocessing than the ones asked for."""


class ImpossiblePlan(UserError):
    """A configuration asks for steps in an order that would be wrong or useless; the reason is given."""


class EmptyDataset(UserError):
    """An input pipeline delivered no example at all."""


class UnknownModel(UserError):
    """`model.name` is neither a built-in model, nor a `keras.applications` name, nor an importable builder."""


class UnequalConfigurations(UserError):
    """Two configurations with the same preprocessing do not deliver the same examples."""


class StageFailed(UserError):
    """A stage run by a flow ended with a non-zero exit code; its last lines are repeated."""


class ConditionMet(UserError):
    """`--fail-if` asked for an error exit should a measured figure be like this, and it is."""


class ServiceFailed(UserError):
    """A dispatcher or worker of the tf.data service did not start."""


class WorkspaceProblem(UserError):
    """The git or DVC state does not allow an isolated run."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turn a `UserError`, or a full disk, into one paragraph on stderr and exit code 2; the door of every command is wrapped in it."""
    try:
        yield
    except UserError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = f" while writing {error.filename}" if error.filename else ""
        print(f"DiskFull: no space is left{place}; earlier outputs are untouched. Free some space and run the same command again.", file=sys.stderr)
        raise SystemExit(2) from None


@contextmanager
def known_form(path: Path, stage: str) -> Iterator[None]:
    """Raise MissingInput where an index that is read within has not the form that this version writes."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise MissingInput(f"{path} was written by another version of the program ({error}); run `dvc repro {stage}`") from error


def made_anew(path: Path, stage: str) -> str:
    """What to do about a damaged output of a stage."""
    return f"delete {path} and run `dvc repro {stage}`"


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint that names the known word closest to a mistyped one, or all of them when none is close."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "known: " + ", ".join(sorted(known))
