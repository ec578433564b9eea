"""The client of an object store, against a real one: what it does, and says where it cannot."""

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import boto3
import pytest

from throughline.shared.errors import ObjectStoreFailed
from throughline.shared.object_store import BACKOFF, PART_BYTES, PUTS_AT_ONCE, RETRIES, open_store

pytestmark = pytest.mark.integration

DATA = bytes(range(256)) * 100
GIVES_UP_S = 120


@pytest.fixture(autouse=True)
def _tried_again_at_once(monkeypatch) -> None:
    for wait in ("init_backoff", "max_backoff"):
        monkeypatch.setitem(BACKOFF, wait, timedelta(milliseconds=1))


@pytest.fixture
def opened(bucket_url):
    """A store with an object."""
    store = open_store(bucket_url)
    store.write("a", DATA)
    return store


def test_what_is_written_is_read_listed_and_removed(bucket_url, monkeypatch):
    """At the endpoint of S3 alone, which comes first, as for DVC."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    opened = open_store(bucket_url + "/")
    opened.write("a/one", DATA)
    opened.write("b/two", b"2")
    assert opened.read("a/one") == b"".join(opened.stream("a/one")) == DATA
    assert opened.read_range("a/one", start=1000, length=500) == DATA[1000:1500]
    assert opened.find("a/one").bytes == len(DATA)
    assert opened.find("a/none") is None
    assert {one.name: one.bytes for one in opened.list()} == {"a/one": len(DATA), "b/two": 1}
    assert [one.name for one in opened.list("a")] == ["a/one"]
    opened.delete(["a/one", "a/none", "b/two"])
    assert not list(opened.list())


def test_an_object_that_is_missing_or_too_short_and_a_missing_bucket_are_named(opened, bucket_url):
    opened.write("short", b"12345")
    with pytest.raises(ObjectStoreFailed, match=f"{bucket_url}/none: there is no such object"):
        opened.read("none")
    with pytest.raises(ObjectStoreFailed, match="short ends after 5 bytes, but 12 are needed"):
        opened.read_range("short", start=2, length=10)
    with pytest.raises(ObjectStoreFailed, match="s3://other/x/a: there is no such"):
        open_store("s3://other/x").read("a")
    with pytest.raises(ObjectStoreFailed, match="there is no such bucket; create it"):
        list(open_store("s3://other").list())


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AWS_SECRET_ACCESS_KEY", "a-wrong-secret", r"no permission \(SignatureDoesNotMatch\)"),
        ("AWS_ACCESS_KEY_ID", "", "check the credentials|credentials are incomplete"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "store was not reached .* each of 4"),
        ("AWS_ALLOW_HTTP", "false", "set AWS_ALLOW_HTTP=true"),
    ],
)
def test_no_permission_and_no_network_are_said_in_words(
    bucket_url, object_store, monkeypatch, variable, value, words
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ObjectStoreFailed, match=words) as refused:
        open_store(bucket_url).read("a")
    said = str(refused.value)
    assert said.startswith(f"{bucket_url}/a: ") and not {"\n", "<"} & {*said}
    assert object_store["AWS_SECRET_ACCESS_KEY"] not in said + repr(open_store(bucket_url))


def test_what_is_said_of_a_container_names_its_own_provider(monkeypatch):
    own = {"ACCOUNT_NAME": "mine", "ACCOUNT_KEY": "c2VjcmV0", "ENDPOINT": "http://127.0.0.1:1/mine"}
    for name, value in own.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    with pytest.raises(ObjectStoreFailed, match="set AZURE_ALLOW_HTTP=true") as refused:
        open_store("az://box").read("a")
    assert "AWS" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/x", "not a bucket; expected s3://BUCKET/PREFIX"),
        ("s3://KEY:abc/hidden+x@data/x", "credentials come from the env"),
        ("s3://data/x?sig=hidden", "credentials come from the env"),
    ],
)
def test_another_scheme_and_a_secret_are_refused_and_no_secret_is_repeated(url, words):
    with pytest.raises(ObjectStoreFailed, match=words) as refused:
        open_store(url)
    assert "hidden" not in str(refused.value)


def test_another_process_gets_no_credentials(opened, object_store, monkeypatch):
    sent = pickle.dumps(opened)
    assert object_store["AWS_SECRET_ACCESS_KEY"].encode() not in sent
    assert pickle.loads(sent).read("a") == DATA
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "its-own")
    with pytest.raises(ObjectStoreFailed, match="no permission"):
        pickle.loads(sent).read("a")


def test_a_servers_error_is_tried_again_and_then_names_the_object(proxy, opened):
    proxy.fault = lambda method, path: "503"
    with pytest.raises(ObjectStoreFailed, match=r"/a: the store answered HTTP 503 .* 4 attempts"):
        opened.read("a")
    assert proxy.count("GET") == 1 + RETRIES


def test_an_object_that_is_not_the_one_that_was_listed_is_named(bucket_url):
    opened = open_store(bucket_url)
    opened.write("a/b", DATA)
    (one,) = opened.list()
    assert opened.list_folder() == (["a"], [])
    assert opened.list_folder("a") == ([], [one])
    assert opened.read_as_listed(one) == DATA
    assert opened.read_as_listed(one, start=1000, length=500) == DATA[1000:1500]
    opened.write("a/b", DATA[::-1])
    for part in ({}, {"start": 0, "length": 10}):
        with pytest.raises(ObjectStoreFailed, match="/a/b has changed since it was listed"):
            opened.read_as_listed(one, **part)
    opened.delete(["a/b"])
    with pytest.raises(ObjectStoreFailed, match="/a/b: there is no such object"):
        opened.read_as_listed(one)


def test_an_answer_that_is_cut_goes_on_with_the_same_object_or_never(proxy, opened, bucket_url):
    other, (one,) = open_store(bucket_url), opened.list()
    faults = iter(["cut", "replaced"])

    def replace_before_the_rest(method, path):
        fault = next(faults, None) if method == "GET" else None
        if fault == "replaced":
            other.write("a", bytes(len(DATA)))
        return "cut" if fault == "cut" else None

    proxy.fault = replace_before_the_rest
    with pytest.raises(ObjectStoreFailed, match=r"/a: the store .*body error"):
        opened.read_as_listed(one)


def test_a_large_object_is_put_in_parts_as_one_and_a_file_as_its_bytes_are(proxy, opened, tmp_path):
    data = DATA * (PART_BYTES // len(DATA) + 1)
    proxy.requests.clear()
    opened.write("a", data)
    parts = [path for method, path, _ in proxy.requests if method == "PUT"]
    assert len(parts) == 2 and all("partNumber=" in path for path in parts)
    assert opened.read("a") == data
    (tmp_path / "file").write_bytes(DATA)
    opened.write_file("b", tmp_path / "file")
    assert opened.read("b") == DATA
    assert [one.name for one in opened.list()] == ["a", "b"]
    with pytest.raises(FileNotFoundError):
        opened.write_file("c", tmp_path / "none")


def test_few_objects_are_on_their_way_at_a_time_whatever_the_number_of_threads(proxy, opened):
    """For all share the uplink. Each waits until as many as there may be are on their way."""
    together, lock, counts = threading.Barrier(PUTS_AT_ONCE), threading.Lock(), [0, 0]

    def count(method, path):
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        together.wait(GIVES_UP_S)
        with lock:
            counts[0] -= 1

    proxy.fault = count
    with ThreadPoolExecutor(4 * PUTS_AT_ONCE) as threads:
        list(threads.map(lambda name: opened.write(str(name), DATA), range(8 * PUTS_AT_ONCE)))
    assert counts == [0, PUTS_AT_ONCE]


@pytest.mark.parametrize("faults", [["late"], ["cut"], ["503"] * RETRIES], ids=str)
def test_an_answer_that_is_late_or_cut_once_arrives_whole(proxy, opened, faults):
    faults = iter(faults)
    proxy.fault = lambda method, path: next(faults, None)
    assert opened.read_range("a", start=0, length=len(DATA)) == DATA
    assert next(faults, None) is None


@pytest.mark.parametrize(
    ("refusal", "words", "of_head"),
    [
        ("301", "another region; set AWS_REGION to its own", "another region"),
        ("400 ExpiredToken", r"credentials have expired .* \(ExpiredToken\)", "expired.*HTTP 400"),
        ("403 RequestTimeTooSkewed", "clock differs too much", "check this machine's clock"),
    ],
)
def test_another_region_old_credentials_and_clocks_are_said(proxy, opened, refusal, words, of_head):
    proxy.fault = lambda method, path: refusal
    with pytest.raises(ObjectStoreFailed, match=words):
        opened.read("a")
    with pytest.raises(ObjectStoreFailed, match=of_head):
        opened.find("a")


def test_a_name_that_is_none_of_a_file_is_named(bucket_url, object_store):
    """S3 has empty folders in names, too, which this store does not keep."""
    bucket, _, prefix = bucket_url.removeprefix("s3://").partition("/")
    client = boto3.client("s3", endpoint_url=object_store["AWS_ENDPOINT_URL"], region_name="any")
    client.put_object(Bucket=bucket, Key=f"{prefix}/a\n.jpg", Body=b"1")
    opened = open_store(bucket_url)
    with pytest.raises(ObjectStoreFailed, match=r"a\\n\.jpg' has an empty part, .*rename") as said:
        list(opened.list())
    assert "\n" not in str(said.value)
    for name in ("photos//a.jpg", "photos/../a.jpg"):
        with pytest.raises(ObjectStoreFailed, match=f"the name '{name}' has an empty part"):
            opened.write(name, b"1")
