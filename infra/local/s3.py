"""SeaweedFS as the S3 store: DVC's remote and MLflow's artifacts, a bucket each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError
from s3fs import S3FileSystem

from flows.servers.credentials import private_folder
from flows.servers.services import ServerProcess, is_listening, run_servers
from infra.local.stack_config import StackConfig

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
        healthy=lambda: is_listening(first) and _ensure_buckets(home),
        environment=home.objects,
    )
    try:
        with run_servers(server, logs=home.logs):
            yield
    finally:
        for left in Path("/tmp").glob("seaweedfs-*-grpc-*.sock"):
            if left.stem.rpartition("-")[2] in {str(first + 10_000 + part) for part in range(4)}:
                left.unlink(missing_ok=True)


def _client(home: StackConfig) -> S3FileSystem:
    own = home.objects
    return S3FileSystem(
        key=own["AWS_ACCESS_KEY_ID"],
        secret=own["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _ensure_buckets(home: StackConfig) -> bool:
    client = _client(home)
    try:
        for bucket in set(BUCKETS) - set(client.ls("")):
            client.mkdir(bucket)
    except (BotoCoreError, OSError):
        return False
    return True
