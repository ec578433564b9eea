"""The lock that every measurement on this machine holds, so that none disturbs another.

The kernel releases it when its process ends, even by kill -9.
"""

import errno
import pwd
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from throughline.shared.errors import ServiceFailed
from throughline.shared.file_lock import hold_when_free

MACHINE_HELD = "THROUGHLINE_MACHINE_HELD"  # variable: a flow holds the lock for its stages
# An abstract socket address: one per machine (per network namespace) for all users, whatever their
# TMPDIR, without a file that could belong to another user, be a link, or be left behind.
MACHINE_ADDRESS = "\0throughline-measuring"


def hold_machine(on_wait: Callable[[str], object]) -> AbstractContextManager[int]:
    """Hold this machine's lock for the block; ServiceFailed if it allows no abstract sockets."""
    return hold_when_free(_hold_if_free, lambda: on_wait(_describe_machine_holder()))


@contextmanager
def _hold_if_free() -> Iterator[int | None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        try:
            lock.bind(MACHINE_ADDRESS)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ServiceFailed(
                    "this machine allows no abstract socket, which measurements use as their lock"
                    f" ({error.strerror}); allow it for this user (AppArmor, Landlock, seccomp)"
                ) from error
            yield None
            return
        lock.listen()  # so that waiting processes can ask the kernel who holds it
        yield lock.fileno()


def _describe_machine_holder() -> str:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.setblocking(False)
        peer.connect(MACHINE_ADDRESS)
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        process, user, _ = struct.unpack("3i", credentials)
        with suppress(KeyError):
            return f"process {process} of user {pwd.getpwuid(user).pw_name}"
        return f"process {process} of user {user}"
    return "another process"
