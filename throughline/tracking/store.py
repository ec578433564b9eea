"""Which MLflow store runs are sent to, and what its errors mean.

The address comes from the user's environment. What is relative in it is meant in the project, not
in the worktree where a stage happens to run; a password in it is for the store alone, and is shown
and written nowhere.
"""

from __future__ import annotations

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
OWN_STORE, OWN_ARTIFACTS = "sqlite:///mlflow.db", "mlartifacts"  # of a project
# How a store shows that it cannot be reached or written.
STORE_ERRORS = (MlflowException, requests.RequestException, OSError)
# Answers to what may be taken later.
NOT_NOW = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_PASSWORD = re.compile(r"(://[^\s/:@]*):\S+@")  # it may hold / and @
_REFUSED = re.compile(r"[^\w./\- :]")  # in keys, by MLflow
LONGEST_KEY = 250
UNREACHED = "Max retries exceeded with url"  # after which MLflow's client goes on at length
SURROUNDINGS = "(raised as a result of"  # before what SQLAlchemy was told
_STATUS = re.compile(r"failed with error code (\d{3})")  # of MLflow's client


def store_home() -> Path:
    """The project whose SQLite file and artifacts serve where there is no tracking server."""
    return Layout().project.resolve()


def use_store() -> None:
    """Send runs of this process, and of those that it starts, to MLFLOW_TRACKING_URI, or to an
    SQLite file in the project's folder.

    Raises:
      InvalidParams: runs cannot be sent to what that variable names.
    """
    check_store_address()
    home = store_home()
    openers: dict[str, Any] = get_registered_artifact_repositories()  # pyright: ignore[reportAssignmentType] - of functions
    openers["mlflow-artifacts"] = _open_artifacts
    address = make_absolute(os.environ.get(ADDRESS) or OWN_STORE, home)
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.username and parts.password:
        # Where MLflow's client reads them, too, and puts them into no message.
        os.environ |= {USER: unquote(parts.username), PASSWORD: unquote(parts.password)}
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    mlflow.set_tracking_uri(address)


def _open_artifacts(
    uri: str, tracking_uri: str | None = None, registry_uri: str | None = None
) -> ArtifactRepository:
    """Artifacts of an experiment that was made over `make ui`: through its server, or without one,
    in the project's own store, in the folder where that keeps them.
    """
    home = store_home()
    if (tracking_uri or mlflow.get_tracking_uri()) == make_absolute(OWN_STORE, home):
        return LocalArtifactRepository((home / OWN_ARTIFACTS).as_uri() + urlsplit(uri).path)
    return MlflowArtifactsRepository(uri, tracking_uri, registry_uri)


def name_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values, nested ones with dots, under keys that MLflow takes: `_` stands for each character
    that it refuses. It would refuse all values for one key.

    >>> name_keys({"data": {"m²": 1, "(m)": 2, "_m_": 3}})
    {'data.m²': 1, 'data._m_': 2, 'data._m__2': 3}
    """
    named: dict[str, Any] = {}
    for key, value in _flatten(values):
        known = _REFUSED.sub("_", key)[:LONGEST_KEY]
        if posixpath.normpath(known) != known or known.startswith((".", "/")):
            known = known.replace("/", "_").lstrip(".") or "_"
        place = 1
        while (unique := known if place == 1 else f"{known[: LONGEST_KEY - 4]}_{place}") in named:
            place += 1
        named[unique] = value
    return named


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def show_address() -> str:
    """The address that runs are sent to, for messages."""
    return hide_password(mlflow.get_tracking_uri())


def hide_password(text: str) -> str:
    """A text without the passwords of the addresses in it.

    >>> hide_password("no answer of postgresql://me:se/cr@et@host/db")
    'no answer of postgresql://me:***@host/db'
    """
    return _PASSWORD.sub(r"\1:***@", text)


def reason(error: Exception) -> str:
    """The first line of what an error says; of a server that is away, that it is."""
    if UNREACHED in str(error):
        return "it does not answer"
    said = [line for line in str(error).splitlines() if not line.startswith(SURROUNDINGS)]
    return hide_password((said or [type(error).__name__])[0])[:200]


def is_refusal(error: Exception) -> bool:
    """Whether an error is an answer to what was sent, which would be the same later: a 4xx, or what
    MLflow itself makes of it.
    """
    if not isinstance(error, STORE_ERRORS):
        return True
    status = _read_status(error)
    return (
        HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        and status not in NOT_NOW
    )


def _read_status(error: Exception) -> int:
    """Status of an answer; 0 where there was none."""
    if isinstance(error, MlflowException):
        # Of statuses that it has no name for, the client makes an internal error.
        said = _STATUS.search(str(error))
        return int(said[1]) if said else error.get_http_status_code()
    answer = getattr(error, "response", None)
    return 0 if answer is None else answer.status_code
