"""Calls of DVC that survive what DVC does not: another process in the project, and lock
files of killed ones.

DVC refuses paths that another process reads or writes (`.dvc/tmp/rwlock`), also if asked to wait
for its other lock. That file is written in place, so a kill can leave it empty, and its entries are
by process id, which may be in use again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.run.git_calls import find_repository_problem
from flows.run.processes import run_supervised
from throughline.shared.errors import StageFailed, WorkspaceProblem

# --wait-for-lock comes before the subcommand; after it, DVC would not know it.
DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")
BUSY = re.compile(r"is busy, it is being blocked by|Unable to acquire lock")
# As DVC says that it may not write a file, or SQLite a database.
DENIED = re.compile(
    r"unexpected error - (?:\[Errno \d+\][^:]*: '(?P<path>[^']+)'|.*readonly database)"
)
SITE_VARIABLE, SITE_KEY = "DVC_SITE_CACHE_DIR", "core.site_cache_dir"
OWN_SITE = Path(".dvc", "tmp", "site")  # DVC's databases of a project alone
LOCK_FILE = "dvc.lock"
CONFLICT = b"<<<<<<< "
BUSY_POLL_S = 1.0
# Where DVC processes are alive in the project, perhaps not those that matter.
ATTEMPT_EVERY_S = 60.0
GUARD_WAIT_S = 10.0  # DVC holds the guard of its rwlock for milliseconds


def dvc_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment, this interpreter first on the path: dvc.yaml calls plain `python`. Whatever
    the locale, files and output are UTF-8.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    ours = {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    # PYTHONIOENCODING would have its way over UTF-8 mode.
    return {**os.environ, **ours, "PYTHONIOENCODING": "utf-8:surrogateescape", **extra}


def stale_stages(
    root: Path,
    environment: Mapping[str, str],
    on_wait: Callable[[str], object],
    lock_fds: Sequence[int] = (),
) -> frozenset[str]:
    """Ask DVC which stages are out of date.

    Raises:
      StageFailed: DVC cannot read the project.
      WorkspaceProblem: it is no git repository.
    """
    for _ in attempts(root, on_wait):
        done = run_supervised(
            [*DVC, "status", "--json"], root, dvc_environment(environment), lock_fds
        )
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
    """Why DVC fails at the databases that it keeps outside of projects, by what it has `said`, and
    what to do; None where something else is wrong.
    """
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
        f"it may not write {found['path'] or site}, where it keeps databases, perhaps since another"
        f" user owns them: `{remedy}` gives this project a folder of its own"
    )


def attempts(root: Path, on_wait: Callable[[str], object]) -> Iterator[int]:
    """Numbers of attempts to call DVC, without end: leave the loop when DVC was not busy.

    Repairs DVC's lock files before each attempt, waits between them, and calls `on_wait` once.
    """
    number = 0
    while True:
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
        number += 1


def repair_locks(root: Path) -> None:
    """Remove from `.dvc/tmp/rwlock` what no living DVC process holds; a damaged file is emptied
    once none lives.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return
    with _guard(path.with_name("rwlock.lock")):
        try:
            entries = _parse(path.read_text())
        except (ValueError, AttributeError, KeyError, TypeError):
            if not dvc_processes(root):
                path.write_text("{}")
            return
        living = {
            "write": {name: info for name, info in entries["write"].items() if _lives(info)},
            "read": {
                name: infos
                for name, readers in entries["read"].items()
                if (infos := [info for info in readers if _lives(info)])
            },
        }
        if living != entries:
            path.write_text(json.dumps(living))


def set_damaged_lock_aside(root: Path) -> bool:
    """Rename a dvc.lock that holds no YAML mapping with a schema, unless DVC is writing it; returns
    whether it was one.

    DVC writes it in place, and refuses to do anything with a damaged one. A merge conflict is left
    to the user.
    """
    path = root / LOCK_FILE
    try:
        content = path.read_bytes()
        if CONFLICT in content or "schema" in _mapping(content):
            return False
    except FileNotFoundError:
        return False
    if dvc_processes(root):
        return False
    path.replace(path.with_name(f"{LOCK_FILE}.damaged"))
    return True


def _mapping(content: bytes) -> dict[str, Any]:
    """The mapping of a YAML file; an empty one where there is none."""
    try:
        document = YAML(typ="safe").load(content.decode())
    except (YAMLError, UnicodeDecodeError):
        return {}
    # DVC has no key without a value; a file cut at the end of a line has.
    return document if isinstance(document, dict) and None not in document.values() else {}


def dvc_processes(root: Path) -> list[psutil.Process]:
    """Living DVC processes that work in the DVC project `root`, not in one below it."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            words = process.cmdline()
            is_dvc = "dvc" in words or any(Path(word).name == "dvc" for word in words[:2])
            if is_dvc and process.status() != psutil.STATUS_ZOMBIE:
                folder = Path(process.cwd())
                inside = (one for one in (folder, *folder.parents) if (one / ".dvc").is_dir())
                if next(inside, None) == root.resolve():
                    processes.append(process)
    return processes


def _parse(text: str) -> dict[str, Any]:
    entries = json.loads(text)
    write, read = entries.get("write", {}), entries.get("read", {})
    for info in (*write.values(), *(info for readers in read.values() for info in readers)):
        if not isinstance(info["pid"], int) or not isinstance(info["cmd"], str):
            raise ValueError(f"not an entry of DVC: {info}")
    return {"write": dict(write), "read": dict(read)}


def _lives(info: Mapping[str, Any]) -> bool:
    """Whether an entry's process is still the one that made it: its id may belong to another one by
    now.
    """
    arguments = str(info["cmd"]).partition(" ")[2]
    try:
        process = psutil.Process(int(info["pid"]))
        words = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and words.endswith(arguments)
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


@contextmanager
def _guard(path: Path) -> Iterator[None]:
    """Hold the lock under which DVC reads and writes its rwlock."""
    deadline = time.monotonic() + GUARD_WAIT_S
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StageFailed(
                        f"{path} has been held for {GUARD_WAIT_S:.0f} s by another process; end it,"
                        " or run again when it has ended"
                    ) from None
                time.sleep(0.05)
        yield
