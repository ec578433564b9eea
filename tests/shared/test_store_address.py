"""Addresses of stores and data, and the folders of a project."""

from pathlib import Path

import pytest

from tests.support.small_data import write_files
from throughline.shared.data_url import (
    check_object_exists,
    find_single,
    is_address,
    open_below,
    split_address,
    to_store_url,
)
from throughline.shared.errors import DataNotFound, InvalidParams, ObjectStoreFailed
from throughline.shared.layout import STORE_HOME, Layout
from throughline.shared.object_store import open_store
from throughline.shared.store_address import ADDRESS, check_store_address, make_absolute


@pytest.mark.parametrize(
    ("address", "absolute"),
    [
        ("sqlite+pysqlite:///of/all.db?timeout=9", "sqlite+pysqlite:////home/me/of/all.db?timeout=9"),
        ("./mlruns", "file:///home/me/mlruns"),
        ("file:./mlruns", "file:///home/me/mlruns"),
        ("sqlite:////var/runs.db", None),
        ("sqlite:///:memory:", None),
        ("file:///var/mlruns", None),
    ],
)  # fmt: skip
def test_a_relative_address_is_one_in_the_project(address, absolute):
    assert make_absolute(address, Path("/home/me")) == (absolute or address)


def test_what_can_be_written_sooner_or_later_is_taken(tmp_path, monkeypatch):
    servers = ("http://127.0.0.1:9", "https://me:secret@no.such.host/prefix")
    for address in ("", *servers, "sqlite:///runs.db", "sqlite+pysqlite:////var/runs.db"):
        check_store_address({ADDRESS: address})
    check_store_address({ADDRESS: "./mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"})
    monkeypatch.syspath_prepend(write_files(tmp_path, {"MySQLdb.py": "", "mysql/__init__.py": ""}))
    for driver in ("", "+mysqldb", "+mysqlconnector"):
        check_store_address({ADDRESS: f"mysql{driver}://me:secret@host/db"})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("./mlruns", r"\./mlruns is a folder: to let MLflow write there, set .*; or unset MLFLOW"),
        ("file:///var/mlruns", "is a folder"),
        ("http://me:s3cret@[::1", "is not an address such as http://HOST:5000"),
        ("ftp://me:s3cret@host", "begins with ftp:, for which MLflow has no store"),
        ("postgresql+nodriver://me:s3cret@host/db", "needs the Python module nodriver"),
        ("mysql+mariadbconnector://me:s3cret@host", "module mariadb: install the driver mariadbc"),
    ],
)
def test_what_can_never_be_written_is_refused_without_its_password(address, said):
    with pytest.raises(InvalidParams, match=said) as refused:
        check_store_address({ADDRESS: address})
    assert "s3cret" not in str(refused.value)


def test_databricks_needs_credentials(tmp_path):
    of_databricks = {ADDRESS: "databricks", "DATABRICKS_CONFIG_FILE": str(tmp_path / "file")}
    with pytest.raises(InvalidParams, match="set DATABRICKS_HOST and DATABRICKS_TOKEN"):
        check_store_address(of_databricks)
    check_store_address({**of_databricks, "DATABRICKS_HOST": "https://host.example"})
    (tmp_path / "file").touch()
    check_store_address(of_databricks)


def test_urls_are_those_that_dvc_knows_and_others_are_refused():
    assert to_store_url("azure://box/x/") == "az://box/x"
    assert to_store_url("s3://data") == "s3://data"
    assert split_address("s3://data/a b/c#1?.jpg") == ("s3://data", "a b/c#1?.jpg")
    assert split_address("azure://box/a b/1.jpg") == ("az://box", "a b/1.jpg"), "as it is opened"
    said = "found az://; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azure://"
    for path, words in (("az://box/x", said), ("s3://data/../x", "empty, . or ..")):
        with pytest.raises(ValueError, match=words):
            to_store_url(path)
    assert [is_address(path) for path in ("s3://a/b", "a/b", "/a//b")] == [True, False, False]


@pytest.mark.integration
def test_what_is_there_is_below_the_url_or_its_object(bucket_url):
    open_store(bucket_url).write("photos/cat/1.jpg", b"1")
    assert [one.name for one in open_below(f"{bucket_url}/photos").list()] == ["cat/1.jpg"]
    store, one = find_single(f"{bucket_url}/photos/cat/1.jpg")
    assert (store.url, one.name, one.bytes) == (f"{bucket_url}/photos/cat", "1.jpg", 1)
    for path in ("photos", "photos/cat/1.jpg"):
        check_object_exists(f"{bucket_url}/{path}")
    for path in ("phot", "photos/cat/1.jpg/x"):
        with pytest.raises(DataNotFound, match=rf"{bucket_url}/{path} does not exist"):
            check_object_exists(f"{bucket_url}/{path}")
    with pytest.raises(ObjectStoreFailed, match="found ftp://"):
        open_below("ftp://host/x")


@pytest.mark.parametrize(
    ("root", "project"),
    [
        ("/home/me/project", None),
        ("/home/me/project/.dvc/tmp/exps/tmp1", "/home/me/project"),
        ("/home/me/repo/project/.dvc/tmp/exps/tmp1/project", "/home/me/repo/project"),
        ("/a/.dvc/tmp/exps/tmp1/b/.dvc/tmp/exps/tmp2", "/a/.dvc/tmp/exps/tmp1/b"),
        ("/home/me/.dvc/tmp/project", None),
    ],
)
def test_the_project_of_a_copy_is_that_in_which_dvc_was_started(monkeypatch, root, project):
    monkeypatch.delenv(STORE_HOME, raising=False)
    assert Layout(Path(root)).project == Path(project or root)
    monkeypatch.setenv(STORE_HOME, "/elsewhere")
    assert Layout(Path(root)).project == Path("/elsewhere")
