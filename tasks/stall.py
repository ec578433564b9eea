"""`python -m tasks.stall SCRIPT`, the earlier name of `whowaits SCRIPT`; goes with version 0.3."""

from __future__ import annotations

import sys

from throughline.shared.progress import echo
from whowaits.cli import main as whowaits


def main() -> int:
    """Name the command, and run it."""
    echo("python -m tasks.stall is now: whowaits " + " ".join(sys.argv[1:]))
    sys.stdout.flush()
    return whowaits()


if __name__ == "__main__":
    sys.exit(main())
