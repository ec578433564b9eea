"""The stages and the rooms they are built from. Nothing in here imports Prefect.

Importing the package sets the defaults of the environment that every process of Throughline runs in. They must stand
before TensorFlow, MLflow or DVC are imported, which read them once; what the user has set stays.
"""

import os

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
