"""Tags that link a run to its code, its experiment, its flow run and its comparison."""

import os
import re
import subprocess
from pathlib import Path

PARENT_RUN = "THROUGHLINE_PARENT_RUN"
PARENT_TAG = "mlflow.parentRunId"
FLOW_RUN = "THROUGHLINE_FLOW_RUN"
EXPERIMENT = "DVC_EXP_NAME"  # DVC's variable; set for a run with changes
EXPERIMENT_TAG = "dvc.experiment"  # the name of a run with changes
# Files that a run itself changes. Its parameters are in MLflow; in dvc.yaml it changes a list.
OWN_CHANGES = tuple(f":(exclude){name}" for name in ("params.yaml", "dvc.lock", "dvc.yaml"))
# The list of own code in dvc.yaml, below the line that is its first group.
LISTED = re.compile(
    r"^(      # Own ops and models[^\n]*\n)(?:      - [^\n]*(?:\n|\Z))*", re.MULTILINE
)


def read_lineage() -> dict[str, str]:
    tags = {}
    if commit := _git("rev-parse", "HEAD"):
        dirty = _git("status", "--porcelain", "-uno", "--", ":/", *OWN_CHANGES)
        dirty = dirty or _differs(_git("show", "HEAD:./dvc.yaml"), Path("dvc.yaml"))
        tags |= {"git.commit": commit, "git.dirty": str(bool(dirty)).lower()}
    for tag, variable in ((EXPERIMENT_TAG, EXPERIMENT), ("prefect.flow_run_id", FLOW_RUN)):
        if os.environ.get(variable):
            tags[tag] = os.environ[variable]
    return tags


def read_parent() -> dict[str, str]:
    """Return the tag that makes a run a child of the current comparison, if any."""
    parent = os.environ.get(PARENT_RUN)
    return {PARENT_TAG: parent} if parent else {}


def _differs(committed: str, file: Path) -> bool:
    """Return whether dvc.yaml differs from the committed one, except in its list of own code."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return LISTED.sub(r"\1", text).strip() != LISTED.sub(r"\1", f"{committed}\n").strip()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="replace", check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
