"""The stages of dvc.yaml and a few commands, each started by `python -m tasks.NAME`.

When Python starts a stage of HEAVY_STAGES, importing this package hands it to a server process that
has its libraries already, if one runs. Otherwise the parameters are checked before the libraries
are imported; meanwhile TensorFlow's log messages and garbage collection are off.
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
from throughline.shared.termination import report_interrupts_briefly

report_interrupts_briefly()
if _stage := find_started_module("tasks", HEAVY_STAGES):
    hand_over(f"tasks.{_stage}", sys.argv[1:], server=STAGE_SERVER)
    pause_garbage_collection()
    hide_tensorflow_chatter()
    from throughline.config.cli import check_started_stage

    check_started_stage()
