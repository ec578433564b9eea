"""Prefect flows: they order the stages and show the progress of runs, but compute nothing.

When one of its commands is started, importing this package checks the command line first, because
importing Prefect takes seconds.
"""

from throughline.shared.fork_client import find_started_module
from throughline.shared.gc_pause import pause_garbage_collection
from throughline.shared.termination import say_little_of_interrupts

say_little_of_interrupts()
COMMANDS = ("comparison", "prepare_data", "training", "tuning")
if find_started_module("flows", COMMANDS):
    pause_garbage_collection()
    from flows.run.early_check import check_started_command

    check_started_command()
