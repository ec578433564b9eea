"""Inspects the files of a source on all cores, except files unchanged since an earlier ingest.

Workers of a cluster may lack the folder that the stage sees. So before the stage rejects a file
that a worker could not read, it inspects the file itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from throughline.data.encodings.base import (
    FileInfo,
    InputFile,
    Inspect,
    RejectedValue,
    Root,
    UnreadableFile,
)
from throughline.data.found import ExampleFile, Rejected
from throughline.data.inspection_cache import InspectionCache, read_stamp
from throughline.data.object_folder import ObjectFolder
from throughline.shared.engine import in_parallel
from throughline.shared.errors import EngineFailed
from throughline.shared.limits import usable_cores
from throughline.shared.progress import echo_fact, echo_problem, progress

FILES_AT_ONCE = 64  # files in a batch; a kill loses one batch per thread
STALE_SHOWN = 3

Finding = FileInfo | Rejected
Findings = list[tuple[str, Finding]]  # stamp and finding of each file


@dataclass(frozen=True, kw_only=True)
class Unreadable(Rejected):
    """A file that could not be read by `process`, a host name and process ID."""

    process: tuple[str, int]


def _this_process() -> tuple[str, int]:
    return os.uname().nodename, os.getpid()


@dataclass(frozen=True, kw_only=True)
class FileInspection:
    inspect: Inspect
    cache: InspectionCache
    root: Root | ObjectFolder
    converted: Path

    def inspect_all(self, files: Sequence[ExampleFile], *, verify: bool) -> list[Finding]:
        """Return the finding of each file, from now or from an earlier ingest.

        With `verify`, all files are read, and changes that stamps do not show are reported.
        """
        findings: list[Finding | None] = [None for _ in files]
        if not verify:
            findings[:] = self.cache.find(files)
        places = [place for place, finding in enumerate(findings) if finding is None]
        inspected = self._inspect_in_order([files[place] for place in places], verify=verify)
        passed = progress(inspected, total=len(places), label="ingest")
        for place, finding in zip(places, passed, strict=True):
            findings[place] = finding
        self.cache.forget_others(files)
        if len(places) < len(files):
            same = len(files) - len(places)
            echo_fact(f"unchanged and not read again: {same:,} of {len(files):,} files")
        return [finding for finding in findings if finding is not None]

    def _inspect_in_order(self, files: Sequence[ExampleFile], *, verify: bool) -> Iterator[Finding]:
        """Inspect files in batches; each batch is cached as soon as it is complete."""
        batches = [
            FileBatch(files[start : start + FILES_AT_ONCE])
            for start in range(0, len(files), FILES_AT_ONCE)
        ]
        compared, stale = 0, list[str]()
        inspect = partial(
            inspect_batch,
            inspect=self.inspect,
            root=self.root,
            converted=self.converted,
            now=self.cache.now,
        )
        found = in_parallel(inspect, batches, workers=usable_cores())
        for batch, findings in zip(batches, found, strict=True):
            for file, (_, finding) in zip(batch.files, findings, strict=True):
                if isinstance(finding, Unreadable) and finding.process != _this_process():
                    self._refuse_if_readable(file, finding, inspect)
            usable = [
                (file, stamp, finding)
                for file, (stamp, finding) in zip(batch.files, findings, strict=True)
                if isinstance(finding, FileInfo)
            ]
            if verify:
                count, changed = self.cache.find_stale(usable)
                compared, stale = compared + count, stale + changed
            self.cache.keep(usable)
            yield from (finding for _, finding in findings)
        if verify:
            _report_stale(stale, self.root.stamped_by, compared=compared, count=len(files))

    def _refuse_if_readable(
        self, file: ExampleFile, finding: Unreadable, inspect: Callable[[FileBatch], Findings]
    ) -> None:
        """Inspect a file that a worker could not read; raise EngineFailed if this process can."""
        ((_, own),) = inspect(FileBatch([file]))
        if not isinstance(own, Unreadable):
            raise EngineFailed(
                f"engine: a worker at {finding.process[0]} rejects {file.path} ({finding.reason}),"
                f" but this machine can read it; workers need the files of data.path,"
                f" {self.root.real}, at the same path"
            )


@dataclass(frozen=True)
class FileBatch:
    files: Sequence[ExampleFile]

    def __str__(self) -> str:
        return f"one of {len(self.files)} files from {self.files[0].id} on"


def inspect_batch(
    batch: FileBatch,
    *,
    inspect: Inspect,
    root: Root | ObjectFolder,
    converted: Path,
    now: Callable[[], int],
) -> Findings:
    """Return the stamp and the finding of each file.

    Stamps are read before the files, so a file that changes meanwhile no longer matches its stamp.
    """
    return [
        (read_stamp(file, now_ns=now()), _inspect(file, stored, inspect, converted))
        for file, stored in zip(batch.files, root.open_all(batch.files), strict=True)
    ]


def _inspect(file: ExampleFile, stored: InputFile, inspect: Inspect, converted: Path) -> Finding:
    try:
        return inspect(stored, converted)
    except UnreadableFile as error:
        return Unreadable(id=file.id, reason=error.reason, process=_this_process())
    except RejectedValue as error:
        return Rejected(id=file.id, reason=error.reason)


def _report_stale(stale: Sequence[str], stamped_by: str, *, compared: int, count: int) -> None:
    if stale:
        shown = ", ".join(stale[:STALE_SHOWN]) + (" …" if stale[STALE_SHOWN:] else "")
        echo_problem(
            f"{len(stale):,} files had changed, although their {stamped_by} were the same, and were"
            f" read again: {shown}"
        )
    else:
        echo_fact(
            f"all {count:,} files were read; of {compared:,} with the {stamped_by} of an earlier"
            " ingest, none has changed"
        )
