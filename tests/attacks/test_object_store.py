"""The object store, attacked at every port that it listens at; a line of a list is a case."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import psutil
import pytest
import requests

from infra.local import s3
from infra.local.stack_config import StackConfig, load_stack
from tests.support.skips import need

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
]

MODEL = b"the model that was trained"
# Of S3, the filer, the master, a volume, and IAM.
REQUESTS = [
    ("GET", "/?list-type=2"),
    ("GET", "/mlflow/model.keras"),
    ("PUT", "/mlflow/model.keras"),
    ("DELETE", "/mlflow/model.keras"),
    ("PUT", "/buckets/mlflow/model.keras"),
    ("DELETE", "/buckets/mlflow?recursive=true"),
    ("GET", "/dir/assign"),
    ("POST", "/submit"),
    ("GET", "/col/delete?collection=mlflow"),
    ("GET", "/debug/pprof/"),
    ("GET", "/metrics"),
    ("DELETE", "/1,01637037d6"),
    ("POST", "/?Action=CreateAccessKey&UserName=x"),
]
CALLS = [
    "/filer_pb.SeaweedFiler/DeleteEntry",
    "/iam_pb.SeaweedIdentityAccessManagement/GetConfiguration",
    "/master_pb.Seaweed/CollectionDelete",
    "/volume_server_pb.VolumeServer/VolumeDelete",
]
LONGEST_S = 240  # that an answer is waited for; who waits in vain fails


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Iterator[StackConfig]:
    folder = tmp_path_factory.mktemp("store") / "stack"
    with ExitStack() as running:
        opened = load_stack(folder, s3_port=running.enter_context(s3.reserved_ports()))
        running.enter_context(s3.object_store(opened))
        client = s3.open_client(opened)
        client.pipe("mlflow/model.keras", MODEL)
        yield opened
        assert client.cat("mlflow/model.keras") == MODEL, "after all attacks it is what it was"


def list_stores() -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [child for child in below if child.name() == "weed"]


@pytest.fixture(scope="module")
def listening(home) -> dict[int, str]:
    """Every port that the store's processes listen at, and its address."""
    first = home.settings.s3_port
    ours = {one.pid for one in list_stores() if f"-s3.port={first}" in one.cmdline()}
    tcp = [one for one in psutil.net_connections("tcp") if one.pid in ours]
    found = {one.laddr.port: one.laddr.ip for one in tcp if one.status == psutil.CONN_LISTEN}
    assert set(found.values()) == {"127.0.0.1"}, "everything listens on loopback"
    assert set(found) == {port + more for port in range(first, first + 4) for more in (0, 10_000)}
    return found


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_port_answers_who_has_no_key(listening, scheme):
    for port, (method, path) in itertools.product(listening, REQUESTS):
        address = f"{scheme}://127.0.0.1:{port}{path}"
        asked = {"data": b"the attacker's", "verify": False, "timeout": LONGEST_S}
        with suppress(requests.ConnectionError):  # it does not speak this protocol
            reply = requests.request(method, address, **asked)
            refused = reply.status_code in (400, 403, 404, 405) and MODEL not in reply.content
            assert refused, (port, method, path, reply.text[:300])


def test_no_port_takes_calls_without_a_certificate(listening):
    for port, method in itertools.product(listening, CALLS):
        channel, refused = grpc.insecure_channel(f"127.0.0.1:{port}"), pytest.raises(grpc.RpcError)
        with channel, refused as said:
            channel.unary_unary(method)(b"", timeout=LONGEST_S)
        code, details = said.value.code(), said.value.details()
        assert code == grpc.StatusCode.UNAVAILABLE, f"{port} {method}: {details}"


ENTER = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("entered")
    except PermissionError:
        print("refused")
"""
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


def test_another_user_finds_nothing_to_read_and_no_socket_to_enter(home):
    need("root")
    above = home.folder.parent  # from here: the path of a socket has at most 107 bytes
    for parent in home.folder.parents[:-2]:
        # So that only the stack's own folder is in the way.
        parent.chmod(parent.stat().st_mode | 0o011)

    def tell(*command: str, **who: object) -> list[str]:
        done = subprocess.run(command, cwd=above, capture_output=True, text=True, **who)
        return done.stdout.split()

    assert tell("find", str(home.folder), "-readable", **NOBODY) == []
    sockets = [
        os.path.relpath(Path(store.cwd(), one.laddr), above)
        for store in list_stores()
        for one in store.net_connections("unix")
        if one.laddr
    ]
    assert len(sockets) >= 6
    enter = ("/usr/bin/python3", "-c", ENTER, *sockets)
    assert tell(*enter, **NOBODY) == ["refused"] * len(sockets)
    assert tell(*enter) == ["entered"] * len(sockets), "the owner enters the very sockets"
