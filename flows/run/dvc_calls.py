"""Calls of DVC that cope with other DVC processes in the project and with locks of killed ones.

DVC refuses paths that another process uses (`.dvc/tmp/rwlock`), even if it is asked to wait. It
writes that file in place, so a kill can leave it empty; its process ids may be in use again.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from flows.run.git_calls import find_repository_problem
from flows.run.processes import run_supervised
from throughline.shared.errors import StageFailed, WorkspaceProblem

# --wait-for-lock comes before the subcommand: DVC does not know it after.
DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")
BUSY = re.compile(r"is busy, it is being blocked by|Unable to acquire lock")
# DVC's message if it may not write a file, and SQLite's if it may not write a database.
DENIED = re.compile(
    r"unexpected error - (?:\[Errno \d+\][^:]*: '(?P<path>[^']+)'|.*readonly database)"
)
SITE_VARIABLE, SITE_KEY = "DVC_SITE_CACHE_DIR", "core.site_cache_dir"
OWN_SITE = Path(".dvc", "tmp", "site")  # databases of this project only
LOCK_FILE = "dvc.lock"
CONFLICT = b"<<<<<<< "
BUSY_POLL_S = 1.0
# Retry this often while other DVC processes run in the project: something else may block.
ATTEMPT_EVERY_S = 60.0
GUARD_WAIT_S = 10.0  # DVC holds the guard of its rwlock for milliseconds


def dvc_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return our environment and `extra`, in UTF-8, with this Python as dvc.yaml's `python`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    ours = {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    # PYTHONIOENCODING would override UTF-8 mode.
    return {**os.environ, **ours, "PYTHONIOENCODING": "utf-8:surrogateescape", **extra}


def stale_stages(
    root: Path,
    environment: Mapping[str, str],
    on_wait: Callable[[str], object],
    lock_fds: Sequence[int] = (),
) -> frozenset[str]:
    """Ask DVC which stages are out of date.

    Raises StageFailed if DVC cannot read the project or a process does not release its lock file,
    WorkspaceProblem without a git repository, or if DVC may not write its databases.
    """
    command, variables = [*DVC, "status", "--json"], dvc_environment(environment)
    for _ in attempts(root, on_wait):
        done = run_supervised(command, root, variables, lock_fds)
        if done.returncode == 0:
            stages = json.loads(done.stdout or "{}")
            return frozenset(name.removeprefix("./dvc.yaml:") for name in stages)
        if not BUSY.search(done.stderr):
            break
    problem = find_site_problem(root, done.stderr, {**os.environ, **environment})
    if "git repository" in done.stderr:
        problem = find_repository_problem(root)
    if problem:
        raise WorkspaceProblem(f"DVC cannot read the project: {problem}")
    raise StageFailed(f"`dvc status` failed in {root}:\n{done.stderr.strip()}")


def find_site_problem(
    root: Path, said: str, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return why DVC may not write its databases outside of projects, and what to do, or None."""
    found = DENIED.search(said)
    if found is None:
        return None
    from dvc import dirs
    from dvc.config import Config

    given = environment.get(SITE_VARIABLE)
    site = (
        given or Config(str(root / ".dvc"))["core"].get("site_cache_dir") or dirs.site_cache_dir()
    )
    if not Path(found["path"] or site).is_relative_to(site):
        return None
    own = root.resolve() / OWN_SITE
    remedy = f"export {SITE_VARIABLE}={own}" if given else f"dvc config --local {SITE_KEY} {own}"
    return (
        f"it may not write {found['path'] or site}, where it keeps databases, perhaps because"
        f" another user owns them: `{remedy}` gives this project a folder of its own"
    )


def attempts(root: Path, on_wait: Callable[[str], object]) -> Iterator[int]:
    """Yield numbers of attempts to call DVC, without end; leave the loop once DVC was not busy.

    Repairs DVC's lock files before each, and waits in between; `on_wait` is called with messages.
    """
    for number in count():
        if number:
            if number == 1:
                on_wait(f"waits: another DVC process is at work in {root}")
            deadline = time.monotonic() + ATTEMPT_EVERY_S
            time.sleep(BUSY_POLL_S)
            while dvc_processes(root) and time.monotonic() < deadline:
                time.sleep(BUSY_POLL_S)
        repair_locks(root)
        if set_damaged_lock_aside(root):
            on_wait(
                f"{root / LOCK_FILE} was damaged, as by a kill while DVC wrote it, and is set aside"
                f" as {LOCK_FILE}.damaged; stages run again, or come from DVC's cache; `git"
                f" checkout {LOCK_FILE}` brings back the committed one"
            )
        yield number


def repair_locks(root: Path) -> None:
    """Drop dead processes' entries from `.dvc/tmp/rwlock`; empty a damaged one if no DVC runs."""
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return
    guard = path.with_name("rwlock.lock")
    try:
        held = FileLock(guard).acquire(timeout=GUARD_WAIT_S)
    except Timeout:
        raise StageFailed(
            f"{guard} has been held for {GUARD_WAIT_S:.0f} s by another process; end that process,"
            " or run again when it has ended"
        ) from None
    with held:
        try:
            entries = {"write": {}, "read": {}} | json.loads(path.read_text())
            writers, readers = entries["write"].items(), entries["read"].items()
            reading = {name: [info for info in infos if _lives(info)] for name, infos in readers}
            living = {
                "write": {name: info for name, info in writers if _lives(info)},
                "read": {name: infos for name, infos in reading.items() if infos},
            }
        except (ValueError, AttributeError, KeyError, TypeError):
            if not dvc_processes(root):
                path.write_text("{}")
            return
        if living != entries:
            path.write_text(json.dumps(living))


def set_damaged_lock_aside(root: Path) -> bool:
    """Rename a damaged dvc.lock, with which DVC refuses to work; return whether it was renamed.

    A file with merge conflicts stays; so does any file while DVC runs, as it writes it in place.
    """
    path = root / LOCK_FILE
    try:
        if CONFLICT in path.read_bytes() or _is_whole(path) or dvc_processes(root):
            return False
    except FileNotFoundError:
        return False
    path.replace(path.with_name(f"{LOCK_FILE}.damaged"))
    return True


def _is_whole(lock: Path) -> bool:
    from dvc.dvcfile import Lockfile  # here, because importing it takes 0.1 s
    from dvc.exceptions import DvcException
    from dvc.utils import strictyaml

    try:
        strictyaml.load(str(lock), Lockfile.SCHEMA)
    except DvcException:
        return False
    return True


def dvc_processes(root: Path) -> list[psutil.Process]:
    """List living DVC processes in the DVC project `root`, without projects below it."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):
            words = process.cmdline()
            is_dvc = "dvc" in words or any(Path(word).name == "dvc" for word in words[:2])
            if is_dvc and process.status() != psutil.STATUS_ZOMBIE:
                folder = Path(process.cwd())
                inside = (one for one in (folder, *folder.parents) if (one / ".dvc").is_dir())
                if next(inside, None) == root.resolve():
                    processes.append(process)
    return processes


def _lives(info: Mapping[str, Any]) -> bool:
    """Return whether an entry's process still lives; False if another process has its id now."""
    arguments = info["cmd"].partition(" ")[2]
    try:
        process = psutil.Process(info["pid"])
        words = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and words.endswith(arguments)
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False
