"""Start a command as one of the tasks of a cluster that train together: with TF_CONFIG made of what
numbers the tasks.

    srun python -m tasks.cluster -- python -m tasks.train --pipeline NAME
    python -m tasks.cluster --hosts trainer-0.trainer,trainer-1.trainer -- python -m …

Slurm's variables say all; in an Indexed Job of Kubernetes, whose tasks know their
JOB_COMPLETION_INDEX, --hosts names them. A TF_CONFIG that is given stays. Set train.processes to
auto. The task 0 is the chief, which writes.
"""

from __future__ import annotations

import argparse
import os
import shutil

from throughline.plan.clusters import find_tf_config
from throughline.plan.training_workers import TF_CONFIG
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import report_user_errors


def main() -> None:
    """Become a command that knows which task of a cluster it is."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hosts",
        default="",
        metavar="HOST[:PORT],…",
        help="of an Indexed Job: where its tasks are, in the order of their indices",
    )
    parser.add_argument("command", nargs="+", help="after --: what to run")
    options = parser.parse_args()
    with report_user_errors():
        hosts = list(filter(None, options.hosts.split(",")))
        os.environ[TF_CONFIG] = find_tf_config(os.environ, hosts)
        if shutil.which(options.command[0]) is None:
            raise ServiceFailed(f"there is no program {options.command[0]} that can be run")
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
