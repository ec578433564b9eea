"""Ends a failed command or stage with a paragraph, or with the traceback of a bug."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import format_exception
from typing import NoReturn

from throughline.shared.errors import DiskRefused, OutOfMemory, UserError

FAILURE_FILE = "THROUGHLINE_FAILURE_FILE"  # variable: a flow's stage writes its failure there

# Disk errors of everything that writes files. TensorFlow and HDF5 repeat the system's words in
# errors of their own.
_FULL, _LIMIT = "Free some space", "Raise the limit (`ulimit -f`, or the file system's)"
_LOCKED = "ReadOnlyDisk", "the file system is read-only", "Make it writable, or work elsewhere"
_DENIED = "NotPermitted", "this user may not do that", "Change the owner or the permissions"
_DISK = {
    errno.ENOSPC: ("DiskFull", "no space is left", _FULL),
    errno.EDQUOT: ("DiskFull", "no space is left within the quota", _FULL),
    errno.EFBIG: ("DiskFull", "the file is larger than allowed here", _LIMIT),
    errno.EROFS: _LOCKED,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a command failed: the kind of error, its text and, for a bug, the traceback."""

    kind: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind

    @property
    def first_line(self) -> str:
        return str(self).partition("\n")[0]


@contextmanager
def report_user_errors() -> Iterator[None]:
    """Turn user, disk and memory errors into one paragraph on stderr and exit code 2.

    A bug keeps its traceback, with exit code 1. A stage that a flow runs hands both to the flow.
    """
    try:
        yield
    except Exception as error:
        failure = describe_failure(error)
        if not _leave_to_flow(failure):
            if failure.traceback:
                raise
            print(failure, file=sys.stderr)
        raise SystemExit(1 if failure.traceback else 2) from None


def end_process(error: UserError) -> NoReturn:
    """End this process from a watching thread, with the message of `report_user_errors`."""
    failure = describe_failure(error)
    if not _leave_to_flow(failure):
        print(failure, file=sys.stderr, flush=True)
    os._exit(2)


def _leave_to_flow(failure: Failure) -> bool:
    """Hand the failure to the flow; return False without a flow, or if its file is not writable."""
    path = os.environ.get(FAILURE_FILE)
    with suppress(OSError):
        if path:
            Path(path).write_text(json.dumps(asdict(failure)))
            return True
    return False


def describe_failure(error: Exception) -> Failure:
    """Describe an error: with its traceback if it is a bug, otherwise as a paragraph."""
    error = _memory_error(error) or error
    if isinstance(error, UserError):
        return Failure(kind=type(error).__name__, message=str(error))
    if failure := _disk_failure(error):
        return failure
    kind, message = _find_own_error(error) or (type(error).__name__, str(error))
    note = f"{kind}: {message}"
    if message != str(error) and note not in getattr(error, "__notes__", ()):
        error.add_note(note)  # the last line of the traceback
    return Failure(kind=kind, message=message, traceback="".join(format_exception(error)))


# Matches the traceback of Python code called by TensorFlow, within the message of TensorFlow's
# error.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?P<frames>.*?)\n\n\n", re.DOTALL)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)


def _find_own_error(error: Exception) -> tuple[str, str] | None:
    """Return an error's kind, message and place in Python code that TensorFlow called; or None."""
    found = _RAISED.search(str(error))
    if not (found and type(error).__module__.startswith("tensorflow.")):
        return None
    *_, last = re.split(r"\n\n(?=\S)", found["frames"])
    kind, _, words = last.partition(": ")
    frames = [(one["file"], one["line"]) for one in _FRAME.finditer(found["frames"])]
    own = [frame for frame in frames if "/site-packages/" not in frame[0]] or frames
    return kind, f"{words}{': ' if words else ''}{':'.join(own[-1])}" if own else words


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn errors of a disk into `DiskRefused`, for code that prints its errors itself."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        failure = _disk_failure(error)
        if failure is None:
            raise
        raise DiskRefused(str(failure)) from error


def disk_reason(error: Exception) -> str | None:
    known = _DISK.get(_disk_number(error) or 0)
    return known[1] if known else None


def _disk_number(error: Exception) -> int | None:
    of_system = isinstance(error, OSError)
    if of_system and error.errno in _DISK:
        return error.errno
    if of_system or type(error).__module__.startswith("tensorflow."):
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
            if os.strerror(number) in str(error):
                return number
    return None


# Errors of TensorFlow's and XLA's allocators, with the tensor or bytes that found no memory.
_UNALLOCATED = re.compile(
    r"OOM when allocating tensor with (?P<what>shape\S+ and type \w+)"
    r" on \S*device:(?P<device>\w+:\d+)"
    r"|Out of memory while trying to allocate (?P<bytes>\d+) bytes"
)
_OPERATION = re.compile(r"\{\{node ([\w./:-]+)\}\}")


def _memory_error(error: Exception) -> OutOfMemory | None:
    if isinstance(error, MemoryError):
        return OutOfMemory(
            f"{str(error) or 'the machine has no memory left'}. End other programs, or lower"
            " batch_size; earlier outputs are untouched"
        )
    found = _UNALLOCATED.search(str(error))
    if not (found and type(error).__module__.startswith("tensorflow.")):
        return None
    device = found["device"] or "the device"
    what = f"a tensor of {found['what']}" if found["what"] else f"{int(found['bytes']):,} bytes"
    node = _OPERATION.search(str(error))
    of = f" of {node[1]}" if node else ""
    others = ", or end other programs that use this GPU (nvidia-smi lists them)"
    others = "" if device.startswith("CPU") else others
    return OutOfMemory(
        f"{device} has no memory left for {what}{of}. Lower batch_size, use a smaller model or"
        f" train.mixed_precision: true{others}. Earlier outputs are untouched"
    )


def _disk_failure(error: Exception) -> Failure | None:
    number = _disk_number(error)
    if number not in _DISK:
        return None
    name, what, remedy = _DISK[number]
    file = getattr(error, "filename", None)
    return Failure(
        kind=name,
        message=f"{what}{f', {file}' if file else ''}; earlier outputs are untouched. {remedy} and"
        " run the same command again.",
    )
