"""Chooses the MLflow store of runs, and explains its errors.

The address comes from the environment. A relative path in it refers to the project, not to the
worktree of a stage. A password in it goes to the store only; it is never shown or written.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import mlflow
import requests
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import (
    get_registered_artifact_repositories,
)
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

from throughline.shared.layout import Layout
from throughline.shared.store_address import ADDRESS, check_store_address, make_absolute

USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
OWN_STORE, OWN_ARTIFACTS = "sqlite:///mlflow.db", "mlartifacts"  # in the project
# Errors that mean that a store cannot be reached or written.
STORE_ERRORS = (MlflowException, requests.RequestException, OSError)
# Status codes of requests that may succeed later.
NOT_NOW = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_PASSWORD = re.compile(r"(://[^\s/:@]*):\S+@")  # it may contain / and @
_REFUSED = re.compile(r"[^\w./\- :]")  # characters that MLflow refuses in keys
LONGEST_KEY = 250
UNREACHED = "Max retries exceeded with url"  # MLflow's client says much more after it
SURROUNDINGS = "(raised as a result of"  # SQLAlchemy puts it before the database's own message
_STATUS = re.compile(r"failed with error code (\d{3})")  # in messages of MLflow's client


def store_home() -> Path:
    """Return the project whose SQLite file and artifacts are used without a tracking server."""
    return Layout().project.resolve()


def use_store() -> None:
    """Use the store at MLFLOW_TRACKING_URI, or the project's SQLite; InvalidParams if wrong."""
    check_store_address()
    home = store_home()
    openers: dict[str, Any] = get_registered_artifact_repositories()  # pyright: ignore[reportAssignmentType] - of functions
    openers["mlflow-artifacts"] = _open_artifacts
    address = make_absolute(os.environ.get(ADDRESS) or OWN_STORE, home)
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.username and parts.password:
        # MLflow's client reads user and password from there, and never puts them into a message.
        os.environ |= {USER: unquote(parts.username), PASSWORD: unquote(parts.password)}
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    mlflow.set_tracking_uri(address)


def _open_artifacts(
    uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
) -> ArtifactRepository:
    """Open the artifacts of an experiment of `make ui`: through its server, or in its folder."""
    home = store_home()
    if (tracking_uri or mlflow.get_tracking_uri()) == make_absolute(OWN_STORE, home):
        return LocalArtifactRepository((home / OWN_ARTIFACTS).as_uri() + urlsplit(uri).path)
    return MlflowArtifactsRepository(uri, tracking_uri, registry_uri)


def name_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten values with dots, and replace characters that MLflow refuses in keys by `_`.

    >>> name_keys({"data": {"m²": 1, "(m)": 2, "_m_": 3}})
    {'data.m²': 1, 'data._m_': 2, 'data._m__2': 3}
    """
    named: dict[str, Any] = {}
    for key, value in _flatten(values):
        known = _REFUSED.sub("_", key)[:LONGEST_KEY]
        if posixpath.normpath(known) != known or known.startswith((".", "/")):
            known = known.replace("/", "_").lstrip(".") or "_"
        unique, place = known, 1
        while unique in named:
            place += 1
            unique = f"{known[: LONGEST_KEY - 4]}_{place}"
        named[unique] = value
    return named


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def search_runs(condition: str) -> list[Run]:
    """Return the runs of all experiments that meet a condition, the oldest first."""
    found: Any = mlflow.search_runs(
        search_all_experiments=True,
        filter_string=condition,
        order_by=["attributes.start_time ASC"],
        output_format="list",
    )
    return found


def show_address() -> str:
    return hide_password(mlflow.get_tracking_uri())


def hide_password(text: str) -> str:
    """Hide the passwords of addresses in a text.

    >>> hide_password("no answer of postgresql://me:se/cr@et@host/db")
    'no answer of postgresql://me:***@host/db'
    """
    return _PASSWORD.sub(r"\1:***@", text)


def reason(error: Exception) -> str:
    """Return the first line of an error's message, without passwords, or "it does not answer"."""
    if UNREACHED in str(error):
        return "it does not answer"
    said = [line for line in str(error).splitlines() if not line.startswith(SURROUNDINGS)]
    return hide_password((said or [type(error).__name__])[0])[:200]


def is_refusal(error: Exception) -> bool:
    """Return whether a retry is useless: after most 4xx statuses, or errors not of the store."""
    if not isinstance(error, STORE_ERRORS):
        return True
    if isinstance(error, MlflowException):
        # For unknown statuses, the client reports an internal error.
        said = _STATUS.search(str(error))
        status = int(said[1]) if said else error.get_http_status_code()
    else:
        answer = getattr(error, "response", None)
        status = 0 if answer is None else answer.status_code
    refused = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    return refused and status not in NOT_NOW
