"""`python -m whowaits train.py`, in an environment that has it."""

import sys

from whowaits.cli import main

sys.exit(main())
