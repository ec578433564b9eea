"""The stages and the packages they are built from. Nothing in here imports Prefect:
the stages are plain functions, which flows/stages.py wraps as Prefect tasks.

Importing the package sets the defaults of the environment that every process of Throughline runs
in. They must stand before TensorFlow, MLflow or DVC are imported, which read them once; what the
user has set stays. It also keeps Python from searching for garbage while a stage imports its
libraries; where a process has them already, that runs the stage.
"""

import os

from throughline.shared.garbage import pause_garbage_collection
from throughline.shared.stage_client import HEAVY_STAGES, find_started_stage, hand_over

DEFAULT_ENVIRONMENT = {
    # TensorFlow: warnings and errors, no start-up chatter.
    "TF_CPP_MIN_LOG_LEVEL": "2",
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

if _stage := find_started_stage(HEAVY_STAGES):
    hand_over(_stage)
pause_garbage_collection("tasks", HEAVY_STAGES)
