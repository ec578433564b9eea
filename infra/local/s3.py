"""SeaweedFS as the S3 store: DVC's remote and MLflow's artifacts, a bucket each."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError
from s3fs import S3FileSystem

from flows.servers.credentials import private_folder
from flows.servers.services import ServerProcess, find_free_port, is_listening, run_servers
from infra.local.stack_config import StackConfig, load_stack
from infra.store import PARTS

BUCKETS = ("dvc", "mlflow")


@contextmanager
def object_store(home: StackConfig) -> Iterator[None]:
    """Run the stack's S3 store, with its buckets made if they are not there.

    Raises:
      ServiceFailed: it did not start.
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
        with run_servers(server, logs=home.logs):
            yield
    finally:
        for left in Path("/tmp").glob("seaweedfs-*-grpc-*.sock"):
            if left.stem.rpartition("-")[2] in {
                str(first + 10_000 + part) for part in range(len(PARTS))
            }:
                left.unlink(missing_ok=True)


@contextmanager
def temporary_store(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Run a store on free ports, with this bucket; yields the variables that its users need.

    Raises:
      ServiceFailed: it did not start.
    """
    home = load_stack(folder, postgres_port=find_free_port(), s3_port=find_first_port())
    with object_store(home):
        client = open_client(home)
        if bucket not in client.ls(""):
            client.mkdir(bucket)
        yield home.objects


def find_first_port() -> int:
    """The first of as many free ports as the store needs: it takes those 10,000 above as well, and
    from 32,768 on connections take them, too.
    """
    # `random` gives processes whose trainings have one seed the same numbers.
    while True:
        first = 12_000 + 10 * secrets.randbelow(1_000)
        own = range(first, first + len(PARTS))
        if not any(is_listening(port + above) for port in own for above in (0, 10_000)):
            return first


def open_client(home: StackConfig) -> S3FileSystem:
    """What reads and writes in a stack's store."""
    own = home.objects
    return S3FileSystem(
        key=own["AWS_ACCESS_KEY_ID"],
        secret=own["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _is_ready(home: StackConfig) -> bool:
    """Whether the buckets are there, made if they are not, and an object that is put is read back:
    S3 answers up to five seconds before the server of volumes has registered, and until then every
    read fails.
    """
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
