"""The library that stages and commands are made of: from what is on disk to a trained model and
what is known of it. Nothing in here imports Prefect or DVC.

`from throughline import Project` is where a training loop of your own begins.

Importing the package sets the defaults of the environment that every process of Throughline runs
in. They must stand before TensorFlow, MLflow or DVC are imported, which read them once; what the
user has set stays.
"""

import importlib
import os
from typing import Any

DEFAULT_ENVIRONMENT = {
    # TensorFlow: errors alone, neither start-up chatter nor warnings.
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Takes of a GPU's memory what it needs, not all: others work on it, too, and what a training
    # needs is what NVML then reads.
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

# What listens on this machine is asked directly, whatever proxy leads to the rest of the world.
LOOPBACK = ("127.0.0.1", "localhost")
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
if _direct != "*":
    _missing = [_host for _host in LOOPBACK if _host not in _direct.split(",")]
    _direct = ",".join([*filter(None, [_direct]), *_missing])
os.environ |= {"no_proxy": _direct, "NO_PROXY": _direct}


def __getattr__(name: str) -> Any:
    """`Project`, which imports TensorFlow, when it is asked for."""
    if name == "Project":  # by its name: no stage depends on all that a project is made of
        return importlib.import_module("throughline.assembly.project").Project
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
