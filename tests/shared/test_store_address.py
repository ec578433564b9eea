"""What MLFLOW_TRACKING_URI may name, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from throughline.shared.errors import InvalidParams
from throughline.shared.store_address import ADDRESS, check_store_address, make_absolute


@pytest.mark.parametrize(
    ("address", "absolute"),
    [
        ("sqlite:///runs.db", "sqlite:////home/me/runs.db"),
        ("sqlite+pysqlite:///of/all.db?timeout=9", "sqlite+pysqlite:////home/me/of/all.db?timeout=9"),
        ("./mlruns", "file:///home/me/mlruns"),
        ("file:./mlruns", "file:///home/me/mlruns"),
        ("sqlite:////var/runs.db", None),
        ("sqlite:///:memory:", None),
        ("file:///var/mlruns", None),
        ("https://host/prefix", None),
        ("databricks", None),
    ],
)  # fmt: skip
def test_a_relative_address_is_one_in_the_project(address, absolute):
    assert make_absolute(address, Path("/home/me")) == (absolute or address)


def test_what_can_be_written_sooner_or_later_is_taken():
    servers = ("http://127.0.0.1:9", "https://me:secret@no.such.host/prefix")
    for address in ("", *servers, "sqlite:///runs.db", "sqlite+pysqlite:////var/runs.db"):
        check_store_address({ADDRESS: address})
    check_store_address({ADDRESS: "./mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"})


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("./mlruns", r"\./mlruns is a folder, which MLflow writes no more: set .*; or unset it"),
        ("mlruns", "is a folder"),
        ("file:///var/mlruns", "is a folder"),
        ("http://me:s3cret@[::1", "is no address, such as http://HOST:5000"),
        ("ftp://me:s3cret@host", "begins with ftp:, which MLflow knows no store for"),
        ("postgresql+nodriver://me:s3cret@host/db", "needs the Python package nodriver"),
        ("mysql+pymysql://me:s3cret@host/db", "needs the Python package pymysql: install it"),
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
