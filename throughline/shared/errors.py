"""All errors that a user can cause and fix. Each message says what is wrong, where, and what to do.

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
    """Base class of all errors that a user can cause and fix."""


class InvalidParams(UserError):
    """params.yaml, an override, an option or an environment variable has unknown names, wrong
    values or impossible combinations. The message lists all problems.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        several = "s" * (len(self.problems) != 1)
        heading = f"{len(self.problems)} problem{several} in the parameters:"
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in self.problems)]))

    def __reduce__(self) -> tuple[type[InvalidParams], tuple[Sequence[str]]]:
        return InvalidParams, (self.problems,)


class UnknownPipeline(UserError):
    """An option or a form field names a configuration that the parameters do not define. The
    message lists the defined ones.
    """


class DataNotFound(UserError):
    """The data source is missing, empty or of another kind than params.yaml says, or has changed
    since ingest; a command's input is missing; or a known dataset could not be downloaded.
    """


class UnexpectedFiles(UserError):
    """An output of a stage or command exists already or holds files that it did not write; or
    files to upload or objects to read are links, unreadable or ambiguous. All are left unchanged.
    """


class UnreadableSource(UserError):
    """The source as a whole cannot be read (a table without the needed columns, arrays of different
    lengths, a broken archive, files that change meanwhile), or could be read in several ways.
    """

    # `remedy` names the parameter that helps; `several` are the errors that this one joins.
    def __init__(
        self, problem: str, remedy: str = "", *, several: Sequence[UnreadableSource] = ()
    ) -> None:
        self.problem, self.remedy, self.several = problem, remedy, tuple(several)
        ended = problem.endswith((".", "?"))
        advice = f" {remedy[:1].upper()}{remedy[1:]}" if ended else f"; {remedy}"
        super().__init__(f"{problem}{advice if remedy else ''}")


class TooManyRejects(UserError):
    """More examples were rejected than `data.max_reject_fraction` allows. The message counts the
    reasons; the list of rejected examples is kept.
    """


class UnusableDataset(UserError):
    """The accepted examples cannot train a model: there are none, only one class, two with the same
    key, an empty split, or a held-out split whose classes are not trained.
    """


class MissingInput(UserError):
    """An output that a stage or command reads is missing, incomplete or out of date, or another
    version of the program wrote it; or several outputs could be meant, and none was named.
    """


class DamagedFile(UserError, ValueError):
    """A file that a stage wrote is empty, cut off, or holds something else. The message names the
    file and the command that rewrites it.
    """


class CorruptShard(UserError):
    """A TFRecord file is missing, damaged or not as its index says, or a record is undecodable."""


class CorruptColumn(UserError):
    """A file of a snapshot column is missing, or its size or a digest does not match the index."""


class WrongVersion(UserError):
    """A library that affects results is missing, or its version is not the one in uv.lock."""


class StaleSnapshot(UserError):
    """The snapshot was made from other shards or with other preprocessing than the parameters ask
    for, or it or its object store holds fewer rows than are to be read.
    """


class ImpossiblePlan(UserError):
    """A configuration cannot run: the order of its steps would be wrong or useless, or its data,
    memory or processes do not allow it. The message gives the reason.
    """


class EmptyDataset(UserError):
    """The input pipeline of a training delivers no batch."""


class UnknownModel(UserError):
    """`model.name` is not a built-in model, a `keras.applications` name or an importable builder;
    or the model does not work with its options, loss, metrics, optimizer, callbacks or data.
    """


class UnsavableModel(UserError):
    """A model of your own could not be saved and loaded again, which is tried before the first
    epoch; or its layers call Python code, which a SavedModel cannot hold.
    """


class OutdatedModel(UserError):
    """A trained model's file is damaged, does not say how to use it, or needs code or a version of
    the program that are not there. Train it again, unless the message says otherwise.
    """


class UntrustedModel(UserError):
    """A file given with --model names code outside this project, or contains code itself."""


class UnusableInputs(UserError):
    """No input of `tasks.predict` can be used, or, with --strict, not every input. The message
    lists the first of them with reasons, and nothing is written.
    """


class UnequalConfigurations(UserError):
    """A configuration's examples differ from the manifest's or a comparable configuration's."""


class InvalidCode(UserError):
    """A module of your own is not valid Python, or ends the stage that runs it."""


class StageFailed(UserError):
    """A stage that a flow runs ended with a non-zero exit code. The message is the stage's reason,
    cut to one line, or the last lines that it wrote; `failure` has the whole reason.
    """

    def __init__(self, message: str, *, stage: str = "", failure: Failure | None = None) -> None:
        self.stage, self.failure = stage, failure
        super().__init__(message)


class InvalidBudget(UserError):
    """A budget of `tasks.tune` is not a valid size, time or number; no configuration fits the
    budgets; or the snapshot to be prepared does not. The message names what is needed.
    """


class Untunable(UserError):
    """`tasks.tune` cannot search here, or cannot write its result to params.yaml: an epoch is too
    short to measure, several hosts train together, nothing could be trained, or data, code or
    params.yaml changed meanwhile. The message gives the reason.
    """


class ThresholdExceeded(UserError):
    """A figure of the race meets the condition given with `--fail-if`, or was not measured."""


class ServiceFailed(UserError):
    """A server or service that a command starts or needs (Prefect, MLflow, Postgres, the S3 store,
    tf.data, Dask) did not start, has ended, does not answer, is already running or serves
    another project, or its port is taken; or the machine refuses the lock of measurements.
    """


class TrainingDiverged(UserError):
    """The loss of a training is no longer finite. Training stops at the end of that epoch and
    leaves no model; the message names the step by which it happened.
    """


class ProcessLost(UserError):
    """One of several processes that train together was killed, froze, failed or did not start, or
    they waited for each other until a time limit. The same command resumes from the last
    checkpoint.
    """


class AlreadyRunning(UserError):
    """Another process is already writing results into the same folder."""


class EngineFailed(UserError):
    """Dask is not installed; the cluster of a stage cannot be reached, has no workers or was lost;
    or its workers run another program, do not see the stage's files, or end while they process an
    item, which the message names.
    """


class ProcessesDiffer(UserError):
    """Processes that train together do not have the same parameters, code, data or checkpoints, or
    their weights have become different. The message names the part that differs.
    """


class DiskRefused(UserError):
    """Printed as DiskFull, ReadOnlyDisk or NotPermitted: a disk is full or read-only, a file is
    larger than allowed, or the user may not access it. Earlier outputs are untouched.
    """


class OutOfMemory(UserError):
    """A tensor or an array did not fit into the free memory of a GPU or of the machine. The message
    names its shape or size, and the device, if they are known.
    """


class ObjectStoreFailed(UserError):
    """An object store was not reached, refused a request, lacks a bucket or an object, or returned
    other bytes than were written. The message names the object.
    """


class WorkspaceProblem(UserError):
    """A run's name, or the state of git, DVC or the project's files, does not allow the command."""


# The stage that wrote a file. Files of throughline/results/ know their stage themselves.
_WRITERS = {
    "origin.json": "fetch",
    "manifest.json": "ingest", "examples.parquet": "ingest", "rejected.csv": "ingest",
    "values.npy": "ingest", "documents.bin": "ingest",
    "shards/index.json": "shard", "snapshot/index.json": "snapshot",
}  # fmt: skip


@contextmanager
def expect_current_schema(path: Path, stage: str | None = None) -> Iterator[None]:
    """Turn errors of reading a stage's output `path` within the block into user errors.

    Raises:
      MissingInput: The file is missing, or another version of the program wrote it.
      DamagedFile: The file is empty, cut off, or of another kind.
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
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise DamagedFile(
            f"{path} is {'empty' if empty else f'damaged ({first})'};"
            f" {rebuild_hint(path, stage) if stage else f'delete it and {run}'}"
        ) from error


def rebuild_hint(path: Path, stage: str) -> str:
    return f"delete {path} and run `dvc repro {stage}`"


def explain_index_alone(folder: Path, what: str) -> str:
    """Return a remedy for a folder that has an index, but no `what` (shards, columns)."""
    return (
        f"{folder} holds only the index: its {what} are in an object store or lost; set storage.url"
        " to that store, or write them here with `dvc repro --force --single-item shard snapshot`"
    )


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a hint that names the known words closest to a mistyped one, or all of them."""
    import difflib

    longer = [name for name in known if name.startswith(f"{word}_")]
    close = list(dict.fromkeys(difflib.get_close_matches(word, known, n=1, cutoff=0.6) + longer))
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(known))}"
