"""Prefect flows: they order the stages and show the progress of runs, but compute nothing.

This package checks the command line of its commands first, because Prefect's import takes seconds.
"""

from throughline.shared.fork_client import find_started_module
from throughline.shared.gc_pause import pause_garbage_collection
from throughline.shared.termination import report_interrupts_briefly

report_interrupts_briefly()
COMMANDS = ("comparison", "prepare_data", "training", "tuning")
if find_started_module("flows", COMMANDS):
    pause_garbage_collection()
    from flows.run.resolution import check_started_command

    check_started_command()
