"""`whowaits torchrun train.py`: its only process is this one, so that its training is measured."""

import importlib
import os
from pathlib import Path
from typing import Any

COMMAND, MODULE = "torchrun", "torch.distributed.run"
GIVEN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # 0: any free one, for this process alone
for each in ("", "LOCAL_", "GROUP_", "ROLE_"):
    GIVEN |= {f"{each}RANK": "0", f"{each}WORLD_SIZE": "1"}


class CannotStart(Exception):
    """The script or module does not exist or cannot be run; the message says why."""


def is_torchrun(script: str, *, as_module: bool) -> bool:
    return script == MODULE if as_module else Path(script).name == COMMAND


def become_its_process(arguments: list[str]) -> tuple[str, bool, list[str]]:
    """Set the environment as torchrun does; return script, whether it is a module, and arguments.

    Raises:
      CannotStart: there is no PyTorch or script, or not exactly one Python process is asked for.
    """
    try:
        torchrun: Any = importlib.import_module(MODULE)
    except ImportError as error:
        raise CannotStart(f"there is no torchrun: {error}") from error
    asked = torchrun.parse_args(arguments)
    if asked.no_python or (asked.nnodes, asked.nproc_per_node) not in (("1:1", "1"), ("1", "1")):
        raise CannotStart(
            f"{COMMAND} would start several processes, or another program: only"
            " --nproc-per-node 1 of a Python script is measured"
        )
    if not (asked.module or Path(asked.training_script).is_file()):
        raise CannotStart(f"there is no file {asked.training_script}")
    os.environ.update(GIVEN)
    return asked.training_script, asked.module, asked.training_script_args
