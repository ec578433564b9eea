"""The address of the MLflow store in the environment, and why runs can never be sent there.

A server that is down is no such reason. Imports no MLflow.
"""

import os
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from throughline.shared.errors import InvalidParams

ADDRESS = "MLFLOW_TRACKING_URI"
FILE_STORE_ALLOWED = "MLFLOW_ALLOW_FILE_STORE"  # required by MLflow
SERVERS, DATABRICKS = ("http", "https"), ("databricks", "databricks-uc", "uc")
DATABRICKS_HOSTS = ("DATABRICKS_HOST", "DATABRICKS_RUNTIME_VERSION")  # for clients, on clusters
SQLITE = "sqlite"
DRIVERS = {"postgresql": "psycopg2", "mysql": "mysqldb", "mssql": "pyodbc"}  # the usual ones
# Modules of SQLAlchemy's drivers that have other names.
MODULES = {"mysqldb": "MySQLdb", "mysqlconnector": "mysql", "mariadbconnector": "mariadb"}
_RELATIVE_SQLITE = re.compile(r"(sqlite[^:/]*:///)(?!/|:memory:)(.+)")


def make_absolute(address: str, home: Path) -> str:
    """Return a store's address with relative paths resolved against the folder `home`.

    >>> make_absolute("sqlite:///runs.db", Path("/home/me"))
    'sqlite:////home/me/runs.db'
    """
    if relative := _RELATIVE_SQLITE.fullmatch(address):
        return f"{relative[1]}{home / relative[2]}"
    scheme, _, path = address.rpartition(":")
    if scheme in ("", "file") and not path.startswith("//") and address not in DATABRICKS:
        return (home / path).as_uri()
    return address


def check_store_address(environment: Mapping[str, str] = os.environ) -> None:
    """Raise InvalidParams if MLFLOW_TRACKING_URI is set, but runs can never be sent there.

    The reason: it is no address, MLflow cannot write to such a store, or a package or credentials
    are missing.
    """
    address = environment.get(ADDRESS)
    if not address:
        return
    try:
        scheme = urlsplit(make_absolute(address, Path("/"))).scheme or address
    except ValueError:  # the error's message may repeat a password
        raise InvalidParams([f"{ADDRESS} is not an address such as http://HOST:5000"]) from None
    if problem := _find_problem(address, scheme, environment):
        raise InvalidParams(
            [
                f"{ADDRESS} {problem}; or unset {ADDRESS} for the project's own mlflow.db, or"
                " name a server, http://HOST:5000, or a database, sqlite:////PATH/mlflow.db"
            ]
        )


def _find_problem(address: str, scheme: str, environment: Mapping[str, str]) -> str | None:
    kind = scheme.partition("+")[0]
    if kind == "file":
        allowed = environment.get(FILE_STORE_ALLOWED, "").lower() in ("1", "true")
        says = f"{address} is a folder: to let MLflow write there, set {FILE_STORE_ALLOWED}=true"
        return None if allowed else says
    if kind in DATABRICKS:  # only the store knows if credentials are valid
        file = Path(environment.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg").expanduser()
        says = (
            f"is {address}, and there are no credentials for it: set DATABRICKS_HOST and"
            " DATABRICKS_TOKEN, or run `databricks configure`"
        )
        return None if file.exists() or any(map(environment.get, DATABRICKS_HOSTS)) else says
    if kind in DRIVERS:
        driver = scheme.partition("+")[2] or DRIVERS[kind]
        module = MODULES.get(driver, driver)
        says = f"needs the Python module {module}: install the driver {driver}"
        return None if find_spec(module) else says
    known = (*SERVERS, SQLITE, *(one.name for one in entry_points(group="mlflow.tracking_store")))
    says = f"begins with {kind}:, for which MLflow has no store: install the plugin that has one"
    return None if kind in known else says
