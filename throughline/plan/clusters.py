"""TF_CONFIG of a cluster's tasks, from variables of Slurm and Kubernetes. No TensorFlow."""

import re
from collections.abc import Mapping, Sequence

from throughline.plan.training_workers import TF_CONFIG, make_tf_config
from throughline.shared.errors import ImpossiblePlan

FIRST_PORT, PORTS = 20_000, 10_000  # below the ports that Linux assigns to programs
_NODE = r"([^,\[\]]+)(?:\[([\d,-]+)\])?"
_NODES = re.compile(rf"(?:{_NODE}(?:,{_NODE})*)?")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def find_tf_config(environment: Mapping[str, str], hosts: Sequence[str]) -> str:
    """Return this task's TF_CONFIG: as set, else for Slurm, else for an Indexed Job on `hosts`.

    Raises:
      ImpossiblePlan: Nothing says which task this is, there are too few `hosts`, or Slurm's tasks
        cannot be listed.
    """
    if given := environment.get(TF_CONFIG):
        return given
    if "SLURM_PROCID" in environment:
        index, addresses = int(environment["SLURM_PROCID"]), list_slurm_addresses(environment)
    elif "JOB_COMPLETION_INDEX" in environment:
        index = int(environment["JOB_COMPLETION_INDEX"])
        addresses = [host if ":" in host else f"{host}:{FIRST_PORT}" for host in hosts]
    else:
        raise ImpossiblePlan(
            "nothing says which task of a cluster this is: start it with Slurm's srun or as an"
            " Indexed Job of Kubernetes, or set TF_CONFIG"
        )
    if not 0 <= index < len(addresses):
        raise ImpossiblePlan(
            f"this is task {index} of a cluster, counted from 0, and the number of its hosts is"
            f" {len(addresses)}; name one host per task (--hosts), or set TF_CONFIG"
        )
    return make_tf_config(addresses, index)


def list_slurm_addresses(environment: Mapping[str, str]) -> list[str]:
    """Return the addresses of a Slurm step's tasks, node by node; the job's id gives the ports.

    Raises:
      ImpossiblePlan: Slurm's lists cannot be read or differ in length, or the tasks are not
        numbered node by node.
    """

    def read(name: str) -> str:
        return environment.get(f"SLURM_STEP_{name}") or environment.get(f"SLURM_{name}", "")

    nodes = expand_nodes(read("NODELIST") or environment.get("SLURM_JOB_NODELIST", ""))
    tasks = expand_tasks(read("TASKS_PER_NODE"))
    first = FIRST_PORT + int(environment.get("SLURM_JOB_ID", "0")) % PORTS
    if len(nodes) != len(tasks):
        raise ImpossiblePlan(
            f"Slurm's lists of nodes and of tasks per node differ in length, {len(nodes)} and"
            f" {len(tasks)}; set TF_CONFIG instead"
        )
    placed = [
        (node, f"{node}:{first + number}")
        for node, count in zip(nodes, tasks, strict=True)
        for number in range(count)
    ]
    index, here = int(environment["SLURM_PROCID"]), environment.get("SLURMD_NODENAME")
    if here and index < len(placed) and placed[index][0] != here:
        raise ImpossiblePlan(
            f"Slurm has put task {index} on {here}, not on {placed[index][0]}: number the tasks"
            " node by node, with `srun --distribution=block`"
        )
    return [address for _, address in placed]


def expand_nodes(text: str) -> list[str]:
    """Return the nodes of a list in Slurm's short form.

    >>> expand_nodes("gpu[08-10,12],login")
    ['gpu08', 'gpu09', 'gpu10', 'gpu12', 'login']

    Raises:
      ImpossiblePlan: The list is shortened in another way, as in `rack[1-2]n1`.
    """
    if not _NODES.fullmatch(text):
        raise ImpossiblePlan(
            f"Slurm's list of nodes, {text}, cannot be read here: numbers in brackets are allowed"
            " only at the end of a name; set TF_CONFIG instead"
        )
    nodes = []
    for name, ranges in re.findall(_NODE, text):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            if not first:
                nodes.append(name)
                continue
            numbers = range(int(first), int(last or first) + 1)
            nodes += [f"{name}{number:0{len(first)}d}" for number in numbers]
    return nodes


def expand_tasks(text: str) -> list[int]:
    """Return the number of tasks on each node from Slurm's short form.

    >>> expand_tasks("2(x3),1")
    [2, 2, 2, 1]
    """
    return [int(count) for count, times in _TASKS.findall(text) for _ in range(int(times or 1))]
