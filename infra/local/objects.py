"""SeaweedFS as the S3 store: DVC's remote and MLflow's artifacts, a bucket each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError
from s3fs import S3FileSystem

from flows.services import HOST, Service, listens, serving
from infra.local.home import Home

BUCKETS = ("dvc", "mlflow")
PARTS = ("s3", "master", "volume", "filer")  # each listens at a port of its own, from the S3 port on, and 10,000 above it


@contextmanager
def object_store(home: Home) -> Iterator[None]:
    """Run the stack's S3 store, with its buckets made if they are not there.

    Raises:
      ServiceFailed: it did not start.
    """
    folder, first = home.folder / "objects", home.settings.s3_port
    folder.mkdir(exist_ok=True)
    ports = [f"-{part}.port={first + place}" for place, part in enumerate(PARTS)]
    unused = ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false", "-volume.preStopSeconds=1"]
    sizes = ["-master.volumeSizeLimitMB=1024", "-volume.max=0"]  # as many volumes as the disk takes; eight would be taken by one bucket
    service = Service(
        name="objects",
        command=[
            str(Path(sys.executable).with_name("weed")),
            "server",
            f"-dir={folder}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-s3",
            *ports,
            *sizes,
            *unused,
        ],
        healthy=lambda: listens(first) and _made_buckets(home),
        environment=home.objects,
    )
    with serving(service, logs=home.logs):
        yield


def download(home: Home, folder: Path) -> None:
    """Copy every object into BUCKET/ of a folder."""
    client = _client(home)
    for bucket in BUCKETS:
        (folder / bucket).mkdir()
        if client.ls(bucket):
            client.get(f"{bucket}/", f"{folder / bucket}/", recursive=True)


def upload(home: Home, folder: Path) -> None:
    """Put the objects of a folder that `download` has written back; objects that came later stay."""
    client = _client(home)
    for bucket in BUCKETS:
        if any((folder / bucket).iterdir()):
            client.put(f"{folder / bucket}/", f"{bucket}/", recursive=True)


def _client(home: Home) -> S3FileSystem:
    own = home.objects
    return S3FileSystem(
        key=own["AWS_ACCESS_KEY_ID"],
        secret=own["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _made_buckets(home: Home) -> bool:
    client = _client(home)
    try:
        for bucket in set(BUCKETS) - set(client.ls("")):
            client.mkdir(bucket)
    except (BotoCoreError, OSError):
        return False
    return True
