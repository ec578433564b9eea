"""Send to MLflow what could not be sent while its server was away: `python -m tasks.sync`."""

from __future__ import annotations

import argparse
import inspect

from throughline.shared.progress import echo
from throughline.tracking.recorder import sync
from throughline.tracking.store import show_address, use_store


def main() -> None:
    """Send to MLflow what could not be sent while its server was away, all of
    .throughline/unsent/.
    """
    argparse.ArgumentParser(
        prog="python -m tasks.sync", description=inspect.getdoc(main)
    ).parse_args()
    use_store()
    sent, left = sync()
    echo(f"{sent} of {sent + left} kept runs sent to {show_address()}")
    if left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
