"""Everything that can go wrong for a user: one class per situation, each saying what, where and
what to do.

A `UserError` is shown as one paragraph without a traceback and ends the process with exit code 2.
Anything else is a bug and keeps its traceback (`failures.py`). `docs/errors.md` is generated from
these docstrings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from throughline.shared.failures import Failure


class UserError(Exception):
    """Base of all errors that a user can cause and can fix."""


class InvalidParams(UserError):
    """params.yaml (or an override) has unknown keys, wrong types or impossible combinations; all of
    them are listed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = "1 problem" if count == 1 else f"{count} problems"
        super().__init__(
            f"{heading} in the parameters:\n"
            + "\n".join(f"  - {problem}" for problem in self.problems)
        )

    def __reduce__(self) -> tuple[type[InvalidParams], tuple[Sequence[str]]]:
        return InvalidParams, (self.problems,)


class UnknownPipeline(UserError):
    """An option, or a field of a form, names a configuration that the parameters do not have; those
    that they have are named.
    """


class DataNotFound(UserError):
    """The data source is not where params.yaml says, or an input not where a command says, or a
    known dataset could neither be found nor downloaded.
    """


class UnexpectedFiles(UserError):
    """A folder that a stage is to replace holds files that the stage did not write; they are left
    as they are.
    """


class UnreadableSource(UserError):
    """The source as a whole cannot be read: a table without the needed columns, arrays of different
    lengths, a broken archive, files that change while they are read.
    """

    # `remedy`: which parameter of a training helps; `several`: the errors that it joins.
    def __init__(
        self, problem: str, remedy: str = "", *, several: Sequence[UnreadableSource] = ()
    ) -> None:
        self.problem, self.remedy, self.several = problem, remedy, tuple(several)
        ended = problem.endswith((".", "?"))
        advice = f" {remedy[:1].upper()}{remedy[1:]}" if ended else f"; {remedy}"
        super().__init__(f"{problem}{advice if remedy else ''}")


class TooManyRejects(UserError):
    """More examples were rejected than `data.max_reject_fraction` allows; the reasons are counted
    and the list is kept.
    """


class UnusableDataset(UserError):
    """What is left cannot train a model: no examples, a single class, or an empty split."""


class MissingInput(UserError):
    """A stage was started before the stage whose output it reads, or several outputs may be meant
    and none was named.
    """


class DamagedFile(UserError, ValueError):
    """A file that a stage wrote is empty, cut off, or holds something else; names the file and what
    makes it again.
    """


class CorruptShard(UserError):
    """A TFRecord file is truncated, has a wrong checksum, or is not the one its index describes."""


class CorruptColumn(UserError):
    """A snapshot column has the wrong size or a chunk whose digest does not match its index."""


class WrongVersion(UserError):
    """A library that decides results is installed in another version than uv.lock names."""


class StaleSnapshot(UserError):
    """The snapshot was made from other shards or by another preprocessing than asked for, or stores
    fewer rows than are read of it.
    """


class ImpossiblePlan(UserError):
    """A configuration asks for steps in an order that would be wrong or useless; the reason is
    given.
    """


class EmptyDataset(UserError):
    """An input pipeline delivered no example at all."""


class UnknownModel(UserError):
    """`model.name` is neither a built-in model, nor a `keras.applications` name, nor an importable
    builder.
    """


class UnsavableModel(UserError):
    """A model of your own could not be saved and loaded again after training, found out before the
    first epoch; or what it is made of calls Python, which no SavedModel holds.
    """


class OutdatedModel(UserError):
    """A trained model does not say how it is used, or was trained with ops or by a version of the
    program that there no longer are; train it again.
    """


class UntrustedModel(UserError):
    """A file given with --model names code outside of this project, or holds some itself."""


class UnusableInputs(UserError):
    """None of the inputs of `tasks.predict` can be used, or, with --strict, not all of them; the
    first are listed with their reasons, and nothing is written.
    """


class UnequalConfigurations(UserError):
    """Two configurations with the same preprocessing do not deliver the same examples."""


class InvalidCode(UserError):
    """A module of your own is not Python, or ends the stage that runs it."""


class StageFailed(UserError):
    """A stage that a flow runs ended with a non-zero exit code. The message is the reason that the
    stage gave, or the last lines that it wrote.

    A reason is cut to one line; `failure` has all of it.
    """

    def __init__(self, message: str, *, stage: str = "", failure: Failure | None = None) -> None:
        self.stage, self.failure = stage, failure
        super().__init__(message)


class InvalidBudget(UserError):
    """A budget of `tasks.tune` is no size, time or number, or nothing fits into the budgets, or not
    the snapshot that is to be prepared; what is needed at least is named.
    """


class Untunable(UserError):
    """`tasks.tune` cannot search here: an epoch is too short to be measured, several hosts train
    together, or params.yaml cannot be given what it has found.
    """


class ThresholdExceeded(UserError):
    """`--fail-if` asked for an error exit if a figure of the race meets this condition, and it
    does.
    """


class ServiceFailed(UserError):
    """A server or service that a command starts or needs (Prefect, MLflow, Postgres, the S3 store,
    tf.data, Dask) did not start, has ended or does not answer, runs already, or its port is taken;
    also where the machine refuses the measuring lock.
    """


class TrainingDiverged(UserError):
    """The loss of a training is no finite number any more: it ends with the epoch in which that
    happened, says by which step, and leaves no model.
    """


class ProcessLost(UserError):
    """One of several processes that train together was killed, froze, failed or did not start, or
    they waited for each other until a time limit; the same command goes on from the last
    checkpoint.
    """


class AlreadyRunning(UserError):
    """Another process, started by hand, is already at the same work in the same folder."""


class EngineFailed(UserError):
    """The Dask cluster that works for a stage cannot be reached, has no workers or was lost, or its
    workers have another program, do not see the stage's files, or end at an item, which is named.
    """


class ProcessesDiffer(UserError):
    """Processes that train together do not have the same parameters, code, data or checkpoints, or
    have arrived at other weights; the part is named.
    """


class DiskRefused(UserError):
    """Printed as DiskFull, ReadOnlyDisk or NotPermitted: a disk is full or read-only, or a file
    is larger than the user's files may be, or belongs to another user; earlier outputs are
    untouched.
    """


class OutOfMemory(UserError):
    """A tensor or an array did not fit into what was left of the memory of a GPU, or of the
    machine; its shape and the device are named.
    """


class ObjectStoreFailed(UserError):
    """An object store was not reached, refused, lacks a bucket or an object, or does not give the
    bytes that were written; the object is named.
    """


class WorkspaceProblem(UserError):
    """The git or DVC state does not allow an isolated run."""


# Which stage wrote a file; those of throughline/results/ know it themselves.
_WRITERS = {
    "origin.json": "fetch",
    "manifest.json": "ingest", "examples.parquet": "ingest", "rejected.csv": "ingest",
    "values.npy": "ingest", "documents.bin": "ingest",
    "shards/index.json": "shard", "snapshot/index.json": "snapshot",
}  # fmt: skip


@contextmanager
def expect_current_schema(path: Path, stage: str | None = None) -> Iterator[None]:
    """Report a file of a stage, read within the block, that is not as that stage writes it.

    Raises:
      MissingInput: it is not there, or another version of the program wrote it.
      DamagedFile: it is empty, cut off, or not a file of this kind.
    """
    written_by = _WRITERS.get(f"{path.parent.name}/{path.name}") or _WRITERS.get(path.name, "")
    stage = stage or written_by
    run = f"run `dvc repro {stage}`" if stage else "run `dvc repro`"
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise MissingInput(
            f"{path} was written by another version of the program ({error}); {run}"
        ) from error
    except FileNotFoundError as error:
        raise MissingInput(f"{path} is missing; {run}") from error
    except (ValueError, EOFError, RecursionError) as error:
        empty = path.is_file() and path.stat().st_size == 0
        reason = (
            "is empty"
            if empty
            else f"is damaged ({next(iter(str(error).splitlines()), type(error).__name__)})"
        )
        raise DamagedFile(
            f"{path} {reason}; {rebuild_hint(path, stage) if stage else f'delete it and {run}'}"
        ) from error


def rebuild_hint(path: Path, stage: str) -> str:
    """What to do about a damaged output of a stage."""
    return f"delete {path} and run `dvc repro {stage}`"


def explain_index_alone(folder: Path, what: str) -> str:
    """What to do about an output of which the index is there, and DVC has no more than that."""
    return (
        f"{folder} holds the index alone: its {what} were put into an object store, or are lost;"
        " set storage.url to where they are, or write them here by `dvc repro --force --single-item"
        " shard snapshot`"
    )


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a hint that names the known word closest to a mistyped one, with those that the word
    is the beginning of, or all of them when none is close.
    """
    import difflib

    longer = [name for name in known if name.startswith(f"{word}_")]
    close = list(dict.fromkeys(difflib.get_close_matches(word, known, n=1, cutoff=0.6) + longer))
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(known))}"
