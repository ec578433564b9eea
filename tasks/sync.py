"""Send the runs to MLflow that were kept while its server was away: `python -m tasks.sync`."""

import argparse
import inspect
import os

from throughline import DEFAULT_ENVIRONMENT
from throughline.shared.chatter import hide_tensorflow_chatter
from throughline.shared.failures import report_user_errors
from throughline.shared.file_lock import hold_outputs
from throughline.shared.progress import echo
from throughline.tracking.recorder import UNSENT, sync
from throughline.tracking.store import show_address, store_home, use_store

TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
PATIENCE_S = "120"


def main() -> None:
    """Send to MLflow all of .throughline/unsent/, which was kept while its server was away."""
    argparse.ArgumentParser(
        prog="python -m tasks.sync", description=inspect.getdoc(main)
    ).parse_args()
    # Nobody waits for this command, and a server may take long to store a kept run.
    if os.environ[TIMEOUT] == DEFAULT_ENVIRONMENT[TIMEOUT]:
        os.environ[TIMEOUT] = PATIENCE_S
    hide_tensorflow_chatter()
    with report_user_errors(), hold_outputs(store_home() / UNSENT, "sending what it holds"):
        use_store()
        sent, left = sync()
        echo(f"{sent} of {sent + left} kept runs sent to {show_address()}")
    if left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
