"""What the DAG and a person run by `python -m tasks.NAME`: the stages of dvc.yaml, and a few
commands. What they are made of is in throughline/; Prefect's tasks, which run them, in flows/.

Importing the package keeps Python from searching for garbage while a stage imports its libraries;
where a process has them already, that runs the stage.
"""

from throughline.shared.garbage import pause_garbage_collection
from throughline.shared.stage_client import HEAVY_STAGES, find_started_stage, hand_over

if _stage := find_started_stage(HEAVY_STAGES):
    hand_over(_stage)
pause_garbage_collection("tasks", HEAVY_STAGES)
