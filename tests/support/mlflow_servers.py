"""MLflow's server, started quickly, for tests of what is sent to one, and what it has got."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlflow

SERVER = """
import json, os, sys
from pathlib import Path
folder = Path(sys.argv[1])
os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder / 'mlflow.db'}"
os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
os.environ["_MLFLOW_SERVER_ARTIFACT_DESTINATION"] = str(folder / "artifacts")
os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"
from mlflow.server import app
from werkzeug.serving import make_server

def answer(request, respond):
    refused = folder / "refused.json"
    for part, status in json.loads(refused.read_text() if refused.exists() else "{}").items():
        if part in request["PATH_INFO"]:
            respond(f"{status} No", [("Content-Type", "text/html")])
            return [b"<html>no</html>"]
    return app(request, respond)

server = make_server("127.0.0.1", int(sys.argv[2]), answer, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


@contextmanager
def mlflow_server(folder: Path, port: int = 0) -> Iterator[str]:
    """MLflow's server behind what a proxy does: it answers for paths with a part of those in the
    folder's refused.json with the status there, in HTML. Yields its address.
    """
    command = [sys.executable, "-c", SERVER, str(folder), str(port)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **streams) as process:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def points(run_id: str, name: str = "train/loss") -> list[tuple[int, float]]:
    """The history of a metric: pairs of step and value."""
    history = mlflow.MlflowClient().get_metric_history(run_id, name)
    return sorted((point.step, point.value) for point in history)
