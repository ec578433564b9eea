"""`python -m whowaits train.py`, for an environment in which it is installed."""

import sys

from whowaits.cli import main

sys.exit(main())
