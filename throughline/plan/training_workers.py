"""Workers, a process each, that train together, and their slices of batches. Pure Python."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from throughline.shared.errors import ImpossiblePlan

TF_CONFIG = "TF_CONFIG"  # the variable that configures tf.distribute


@dataclass(frozen=True, kw_only=True)
class TrainingWorker:
    """One of `count` workers that train together, each on its slice of every batch.

    All slices of a batch have the same size and none is empty, so that the average over the workers
    is the batch's mean. The last batch of an epoch is cut to a multiple of `batch_multiple` (None:
    of `count`), which leaves out different examples each epoch if they are shuffled. With the same
    multiple, batches are the same for any count. `on_host` workers, this one included, share the
    host's cores and memory.
    """

    index: int = 0
    count: int = 1
    batch_multiple: int | None = None
    on_host: int = 1

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"

    @property
    def multiple(self) -> int:
        """The number that divides every batch size."""
        return self.batch_multiple or self.count

    def share(self, of_host: int) -> int:
        """Return this worker's part of a host's resource, such as cores; at least 1."""
        return max(1, of_host // self.on_host)

    def cut(self, start: Any, size: Any) -> tuple[Any, Any]:
        """Return this worker's slice [first, end) of `size` positions from `start`."""
        first = start + size * self.index // self.count
        return first, start + size * (self.index + 1) // self.count

    def shared(self, examples: int, batch_size: int) -> int:
        """Return the number of an epoch's examples on which all workers together train."""
        return examples - examples % batch_size % self.multiple

    def check(self, examples: int, batch_size: int, *, lanes: int | None = None) -> None:
        """Check that batches can be shared equally.

        Raises:
          ImpossiblePlan: `batch_size` or the multiple cannot be shared equally, lanes would be
            divided, or there are fewer examples than the multiple or lanes.
        """
        multiple = self.multiple
        if lanes and lanes % multiple:
            raise ImpossiblePlan(
                f"shuffle.lanes: {lanes} is not a multiple of {multiple}, as batch sizes are;"
                f" use {-(-lanes // multiple) * multiple}"
            )
        if lanes and not examples:
            raise ImpossiblePlan(f"shuffle.lanes: more lanes ({lanes}) than examples; use fewer")
        if multiple % self.count:
            raise ImpossiblePlan(
                f"train.batch_multiple: {multiple} cannot be shared equally by {self.count}"
                f" processes; use a multiple of {self.count}, or another number of processes"
            )
        if batch_size % multiple:
            above = -(-batch_size // multiple) * multiple
            fitting = sorted({above, max(multiple, above - multiple)})
            whose = (
                f"is not a multiple of train.batch_multiple, {multiple}"
                if multiple > self.count
                else f"cannot be shared equally by {self.count} processes"
            )
            raise ImpossiblePlan(
                f"batch_size: {batch_size} {whose}; use {' or '.join(map(str, fitting))}"
            )
        if examples < multiple:
            raise ImpossiblePlan(
                f"there are fewer examples than train.batch_multiple, {multiple}, and every batch"
                " is a multiple of it; lower it"
                if multiple > self.count
                else f"there are fewer examples than the {self.count} processes, each of which"
                " needs one; use fewer"
            )


def find_training_worker(
    environment: Mapping[str, str],
    *,
    processes: int | Literal["auto"],
    batch_multiple: int | Literal["auto"],
    gpus: int,
) -> TrainingWorker:
    """Return this process's worker: by TF_CONFIG, or else the first of `processes`.

    With `processes` auto, there is one for each of the `gpus`, at least one.

    Raises:
      ImpossiblePlan: TF_CONFIG is wrong, or names another number of workers than `processes`.
    """
    stated = training_worker_from_tf_config(environment)
    multiple = None if batch_multiple == "auto" else batch_multiple
    if stated.count > 1:
        if processes not in ("auto", stated.count):
            raise ImpossiblePlan(
                f"TF_CONFIG names {stated.count} workers, but train.processes is {processes}; set"
                f" train.processes to auto or {stated.count}, or unset TF_CONFIG"
            )
        return replace(stated, batch_multiple=multiple)
    count = max(1, gpus) if processes == "auto" else processes
    return TrainingWorker(count=count, batch_multiple=multiple)


def make_tf_config(addresses: Sequence[str], index: int) -> str:
    """Return TF_CONFIG of one of the workers at these addresses; the first is the chief."""
    return json.dumps(
        {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
    )


def list_addresses(environment: Mapping[str, str]) -> list[str]:
    cluster = json.loads(environment.get(TF_CONFIG) or "{}").get("cluster", {})
    return [*cluster.get("chief", []), *cluster.get("worker", [])]


def training_worker_from_tf_config(environment: Mapping[str, str]) -> TrainingWorker:
    """Return this process's worker by TF_CONFIG, the chief first; without one, the only worker.

    Raises:
      ImpossiblePlan: TF_CONFIG cannot be read, has other roles than chief and worker, or does not
        identify this process.
    """
    text = environment.get(TF_CONFIG) or "{}"
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        counts = {kind: len(cluster.get(kind, [])) for kind in ("chief", "worker")}
        others = sorted(kind for kind, workers in cluster.items() if kind not in counts and workers)
        kind, index = task.get("type"), task.get("index")
    except (ValueError, AttributeError, TypeError) as error:
        raise ImpossiblePlan(
            f"TF_CONFIG is not what tf.distribute expects ({error}): {text[:200]}"
        ) from error
    if others:
        raise ImpossiblePlan(
            f"TF_CONFIG: cluster.{others[0]} takes no part in training here; name a chief and"
            " workers only"
        )
    count = sum(counts.values())
    if count <= 1:
        return TrainingWorker()
    if kind not in counts or type(index) is not int or not 0 <= index < counts[kind]:
        raise ImpossiblePlan(
            f"TF_CONFIG: task {json.dumps(task)} is not one of the {count} workers of the cluster;"
            " each needs its own type (chief or worker) and index"
        )
    index += counts["chief"] if kind == "worker" else 0
    hosts = [address.rpartition(":")[0] for address in list_addresses(environment)]
    return TrainingWorker(index=index, count=count, on_host=hosts.count(hosts[index]))


def name_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """Return the names of the first `count` visible GPUs, as written in CUDA_VISIBLE_DEVICES."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
