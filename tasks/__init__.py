"""What the DAG and a person run by `python -m tasks.NAME`: the stages of dvc.yaml, and a few
commands. What they are made of is in throughline/; Prefect's tasks, which run them, in flows/.

Where Python is starting a stage, importing the package lets a process that has its libraries
already run it; without one its parameters are checked before its libraries are imported, and while
they are, TensorFlow's chatter is hidden and Python does not search for garbage.
"""

import sys

from throughline.shared.chatter import hide_tensorflow_chatter
from throughline.shared.fork_client import (
    HEAVY_STAGES,
    STAGE_SERVER,
    find_started_module,
    hand_over,
)
from throughline.shared.gc_pause import pause_garbage_collection
from throughline.shared.termination import say_little_of_interrupts

say_little_of_interrupts()
if _stage := find_started_module("tasks", HEAVY_STAGES):
    hand_over(f"tasks.{_stage}", sys.argv[1:], server=STAGE_SERVER)
    pause_garbage_collection()
    hide_tensorflow_chatter()
    from throughline.config.cli import check_started_stage

    check_started_stage()
