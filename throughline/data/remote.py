"""Downloads published files in bounded time, even if only package registries can be reached.

A firewall that drops packets answers neither connections nor name look-ups. So each wait for the
network has its own time limit.
"""

import os
import queue
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from throughline.shared.scratch import Scratch

ANSWER_S = 8.0  # until the first bytes of an answer
PAUSE_S = 15.0  # between two pieces of an answer
DOWNLOAD_S = 600.0
LISTS_S = 120.0
_PIECE = 1 << 20

# Runs none of the machine's hooks, and refuses unsigned packages.
_APT = """
Acquire::Languages "none";
Acquire::Retries "0";
Acquire::http::Timeout "10";
Acquire::https::Timeout "10";
Acquire::AllowInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
APT::Sandbox::User "";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


class Unreachable(Exception):
    """Files could not be fetched in this way; says why."""


def download(address: str) -> bytes:
    """Return the content at an address.

    Raises:
      Unreachable: no answer comes within seconds, or it stalls, takes too long or is an error.
    """
    pieces: queue.Queue[bytes | Exception | None] = queue.Queue()
    # Nobody waits for this thread, since a name look-up has no time limit.
    threading.Thread(target=_receive, args=(address, pieces), daemon=True, name="download").start()
    received, limit, deadline = [], ANSWER_S, time.monotonic() + DOWNLOAD_S
    while True:
        try:
            piece = pieces.get(timeout=max(0.0, min(limit, deadline - time.monotonic())))
        except queue.Empty:
            late = f"not complete within {DOWNLOAD_S:.0f} s"
            what = f"nothing came for {limit:.0f} s" if time.monotonic() < deadline else late
            raise Unreachable(f"{address}: {what}") from None
        if isinstance(piece, Exception):
            reason = getattr(piece, "reason", piece)
            reason = (
                f"nothing came for {PAUSE_S:.0f} s" if isinstance(reason, TimeoutError) else reason
            )
            raise Unreachable(f"{address}: {reason}") from piece
        if piece is None:
            return b"".join(received)
        received.append(piece)
        limit = PAUSE_S


def _receive(address: str, pieces: queue.Queue) -> None:
    try:
        with urllib.request.urlopen(address, timeout=PAUSE_S) as answer:
            while piece := answer.read1(_PIECE):
                pieces.put(piece)
        pieces.put(None)
    except Exception as error:  # noqa: BLE001 - the thread that waits decides
        pieces.put(error)


@contextmanager
def unpacked_packages(names: Sequence[str]) -> Iterator[Path]:
    """Unpack Debian packages into a temporary folder, and yield that folder.

    Works for every user and installs nothing. apt checks signatures and digests.

    Raises:
      Unreachable: a tool is missing, fails or takes too long, or no mirror has the packages.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Unreachable("this machine lacks apt-get or dpkg-deb")
    scratch = Scratch()
    folder = scratch.new_folder()
    for part in ("lists/partial", "cache/archives/partial", "packages", "files"):
        (folder / part).mkdir(parents=True)
    (folder / "apt.conf").write_text(_APT)
    own = (f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache")
    apt = (
        "apt-get",
        "-qq",
        "-c",
        str(folder / "apt.conf"),
        *(word for option in own for word in ("-o", option)),
    )
    # A source that does not answer is only a warning, since another may have the packages; the
    # download reports it.
    _run((*apt, "update"), cwd=folder, limit_s=LISTS_S, check=False)
    _run((*apt, "download", *names), cwd=folder / "packages", limit_s=DOWNLOAD_S)
    for package in sorted((folder / "packages").glob("*.deb")):
        _run(
            ("dpkg-deb", "-x", str(package), str(folder / "files")),
            cwd=folder,
            limit_s=DOWNLOAD_S,
        )
        package.unlink()
    yield folder / "files"


def npm_package(name: str, version: str) -> bytes:
    """Return the archive of a package from npm's registry; install nothing and run no script.

    Raises:
      Unreachable: npm is missing, fails or takes too long, or no registry has the package.
    """
    if not shutil.which("npm"):
        raise Unreachable("this machine has no npm")
    scratch = Scratch()
    folder = scratch.new_folder()
    options = ("--ignore-scripts", "--fetch-retries=0", f"--fetch-timeout={PAUSE_S * 1000:.0f}")
    command = ("npm", "pack", f"{name}@{version}", "--pack-destination", ".", *options)
    _run(command, cwd=folder, limit_s=LISTS_S)
    packed = sorted(folder.glob("*.tgz"))
    if not packed:
        raise Unreachable(f"npm pack wrote no archive of {name} {version}")
    return packed[0].read_bytes()


def _run(command: Sequence[str], *, cwd: Path, limit_s: float, check: bool = True) -> None:
    """Run a command; raise Unreachable if it fails (with `check`) or is killed after `limit_s`."""
    subcommand = next((word for word in command[1:] if word in ("update", "download", "pack")), "")
    shown = f"{command[0]} {subcommand}".strip()
    with subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{shown} did not finish within {limit_s:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if check and process.returncode:
        lines = (
            [line for line in output.splitlines() if line.startswith(("E:", "npm error"))]
            or output.splitlines()
            or [f"exit code {process.returncode}"]
        )
        raise Unreachable(f"{shown}: {lines[0].removeprefix('E: ')}")
