"""Start a command as one task of a cluster that trains together.

Sets TF_CONFIG from the variables by which a scheduler numbers its tasks.

    srun python -m tasks.cluster -- python -m tasks.train --pipeline NAME
    python -m tasks.cluster --hosts trainer-0.trainer,trainer-1.trainer -- python -m …

Slurm's variables are enough. In an Indexed Job of Kubernetes a task knows only its
JOB_COMPLETION_INDEX, so --hosts names the hosts. A TF_CONFIG that is set already stays. Set
train.processes to auto. Task 0 is the chief, which writes the results.
"""

import argparse
import os
import shutil

from throughline.plan.clusters import find_tf_config
from throughline.plan.training_workers import TF_CONFIG
from throughline.shared.errors import ServiceFailed
from throughline.shared.failures import report_user_errors


def main() -> None:
    """Replace this process with the command, with TF_CONFIG set."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hosts",
        default="",
        metavar="HOST[:PORT],…",
        help="for an Indexed Job: the hosts of its tasks, in the order of their indices",
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
