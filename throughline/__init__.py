"""The library behind stages and commands: from data on disk to a trained model and its figures.
It imports neither Prefect nor DVC.

A training loop of your own begins with `from throughline import Project`.

Importing the package sets default environment variables for every process of Throughline. They must
be set before TensorFlow, MLflow or DVC are imported, which read them once. Variables that the user
has set stay.
"""

import importlib
import os
from typing import Any

DEFAULT_ENVIRONMENT = {
    # TensorFlow: errors alone, neither start-up chatter nor warnings.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # TensorFlow takes only the GPU memory that it needs: other programs use the GPU, too, and NVML
    # then shows the memory that a training needs.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # No tool sends usage data unless the user turns it on.
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A tracking server that is away must not hold up training.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
for _name, _value in DEFAULT_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# Servers on this machine are asked directly, without the proxy for other hosts.
LOOPBACK = ("127.0.0.1", "localhost")
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
if _direct != "*":
    _missing = [_host for _host in LOOPBACK if _host not in _direct.split(",")]
    _direct = ",".join([*filter(None, [_direct]), *_missing])
os.environ |= {"no_proxy": _direct, "NO_PROXY": _direct}


def __getattr__(name: str) -> Any:
    """Return `Project`, whose import needs TensorFlow, at its first use."""
    if name == "Project":  # imported by name, so that no stage depends on the modules of a project
        return importlib.import_module("throughline.assembly.project").Project
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
