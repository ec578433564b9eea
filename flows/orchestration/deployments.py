"""Read the deployments of prefect.yaml, and send them and their work pool to the Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from throughline.shared.errors import MissingInput, ServiceFailed

DEPLOYMENTS_FILE = Path("prefect.yaml")


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise MissingInput(f"{file.absolute()} is missing; run this in the folder of the project")
    return YAML(typ="safe").load(file.read_text())["deployments"]


def read_entrypoints(file: Path) -> dict[str, str]:
    """Return the entrypoint of each deployment in a prefect.yaml, by the deployment's name.

    Raises:
      MissingInput: there is no such file.
    """
    return {str(one["name"]): str(one["entrypoint"]) for one in _read(file)}


def read_pool(file: Path) -> str:
    """Return the work pool of the deployments in a prefect.yaml.

    Raises:
      MissingInput: there is no such file, or it names several pools; a worker takes runs of one.
    """
    pools = sorted({str(one["work_pool"]["name"]) for one in _read(file)})
    if len(pools) != 1:
        raise MissingInput(f"{file} needs one work pool for all deployments, not {pools}")
    return pools[0]


def deploy(environment: Mapping[str, str]) -> None:
    """Send the work pool and deployments of prefect.yaml, with forms that show today's params.yaml.

    Schedules stay as they were set in the UI.

    Raises:
      ServiceFailed: with what Prefect said.
    """
    run_module(["flows.orchestration.send_deployments"], environment)


def update_forms(environment: Mapping[str, str]) -> None:
    """Update the forms of the deployments to today's params.yaml, and nothing else of them.

    Raises:
      ServiceFailed: with the output of the module.
    """
    run_module(["flows.orchestration.send_deployments", "--forms"], environment)


def run_module(module: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a module with its arguments in a process of its own, without showing its output.

    Raises:
      ServiceFailed: with the output of the module.
    """
    done = subprocess.run(
        [sys.executable, "-m", *module],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ServiceFailed(
            f"`{' '.join(module)}` failed:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )
