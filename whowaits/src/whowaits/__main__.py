"""`python -m whowaits train.py`, in an environment where whowaits is installed."""

import sys

from whowaits.cli import main

sys.exit(main())
