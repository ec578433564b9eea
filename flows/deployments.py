"""The deployments of prefect.yaml and the work pool they belong to, as the project has them and as
they are sent to the Prefect server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruamel.yaml import YAML

from tasks.errors import MissingInput, ServiceFailed

POOL = "throughline"
OWN_SERVICE = (  # of a worker's environment: the tf.data service of the stack that it belongs to
    "THROUGHLINE_SERVICE_ADDRESS"
)
DEPLOYMENTS_FILE = Path("prefect.yaml")
# Of the work pool: no variables, so the server refuses any.
JOB_TEMPLATE = Path(__file__).with_name("job-template.json")


def read_entrypoints(file: Path) -> dict[str, str]:
    """Return the entrypoint of each deployment in a prefect.yaml, by the deployment's name.

    Raises:
      MissingInput: there is no such file.
    """
    if not file.is_file():
        raise MissingInput(f"{file.absolute()} is missing; run this in the folder of the project")
    return {
        str(one["name"]): str(one["entrypoint"])
        for one in YAML(typ="safe").load(file.read_text())["deployments"]
    }


def deploy(environment: Mapping[str, str]) -> None:
    """Make the work pool and the deployments of prefect.yaml; their forms offer what params.yaml
    holds now, and schedules stay as they were set in the UI.

    Raises:
      ServiceFailed: with what Prefect said.
    """
    pool = [
        "prefect",
        "--no-prompt",
        "work-pool",
        "create",
        POOL,
        "--type",
        "process",
        "--base-job-template",
        str(JOB_TEMPLATE),
        "--overwrite",
    ]
    for module in (pool, ["flows.schedules"]):
        run_module(module, environment)


def update_forms(environment: Mapping[str, str]) -> None:
    """Let the forms of the deployments show what params.yaml holds now; nothing else of them
    changes.

    Raises:
      ServiceFailed: with the output of the module.
    """
    run_module(["flows.forms"], environment)


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
