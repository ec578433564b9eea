"""SeaweedFS as the S3 store of DVC's remote and MLflow's artifacts, with a bucket for each."""

import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from botocore.exceptions import BotoCoreError
from s3fs import S3FileSystem

from flows.servers.credentials import private_folder
from flows.servers.services import HOST, ServerProcess, is_listening, keep_running
from infra.local.stack_config import StackConfig, load_stack
from infra.store import PARTS

BUCKETS = ("dvc", "mlflow")


@contextmanager
def object_store(home: StackConfig) -> Iterator[Callable[[], None]]:
    """Run the S3 store with its buckets; yield a function that restarts it if it has ended.

    Raises ServiceFailed if it does not start.
    """
    folder, first = home.folder / "objects", home.settings.s3_port
    private_folder(folder)
    server = ServerProcess(
        name="objects",
        command=[sys.executable, "-m", "infra.store", "--data", str(folder), "--port", str(first)],
        healthy=lambda: is_listening(first) and _is_ready(home),
        environment=home.objects,
    )
    try:
        with keep_running(server, logs=home.logs) as look_after:
            yield look_after
    finally:
        for port in list_ports(first):
            for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                with suppress(FileNotFoundError, PermissionError):  # another user's
                    left.unlink()


@contextmanager
def temporary_store(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Run a store with this bucket on free ports during the block; yield its clients' variables."""
    with reserved_ports() as first:
        home = load_stack(folder, s3_port=first)
        with object_store(home):
            client = open_client(home)
            if bucket not in client.ls(""):
                client.mkdir(bucket)
            yield home.objects


def list_ports(first: int) -> list[int]:
    """Return the store's ports: one for each of its parts, and each of these plus 10,000."""
    return [first + part + above for above in (0, 10_000) for part in range(len(PARTS))]


@contextmanager
def reserved_ports() -> Iterator[int]:
    """Yield the first of free ports that only a server with SO_REUSEADDR, as a store, can bind."""
    with ExitStack() as holders:
        while True:
            # `random` would give processes with the same seed the same numbers; connections use
            # ports from 32,768 on.
            first = 12_000 + 10 * secrets.randbelow(1_000)
            try:
                for port in list_ports(first):
                    holder = holders.enter_context(socket.socket())
                    holder.bind((HOST, port))
                    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now
            except OSError:  # a port is taken
                holders.close()
                continue
            break
        yield first


def open_client(home: StackConfig) -> S3FileSystem:
    own = home.objects
    return S3FileSystem(
        key=own["AWS_ACCESS_KEY_ID"],
        secret=own["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _is_ready(home: StackConfig) -> bool:
    """Make missing buckets, and return whether an object can be written and read."""
    # S3 answers up to five seconds before volumes have registered; until then reads fail.
    client, name = open_client(home), f"{BUCKETS[0]}/.ready"
    try:
        for bucket in set(BUCKETS) - set(client.ls("")):
            client.mkdir(bucket)
        client.pipe_file(name, name.encode())
        found = client.cat_file(name) == name.encode()
        client.rm_file(name)
    except (BotoCoreError, OSError):
        return False
    return found
