"""Several workers that train together: which one this is, and its slice of every batch. Pure; no
TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from throughline.shared.errors import ImpossiblePlan


@dataclass(frozen=True, kw_only=True)
class TrainingWorker:
    """One of `count` workers that train together, each on its slice of every batch.

    All slices of a batch are equally large, so that the average over the workers is the batch's
    mean, and none is empty. Of the last batch of an epoch the examples that cannot be shared
    equally are left out: fewer than workers, and other ones each epoch where they are shuffled.
    """

    index: int = 0
    count: int = 1

    def shared(self, examples: int, batch_size: int) -> int:
        """How many of an epoch's examples all workers together train on."""
        return examples - examples % batch_size % self.count

    def check(self, examples: int, batch_size: int) -> None:
        """Refuse what cannot be shared equally.

        Raises:
          ImpossiblePlan: the batch cannot be cut into equal slices, or there are fewer examples
            than workers.
        """
        if batch_size % self.count:
            fitting = sorted(
                {
                    max(1, batch_size // self.count) * self.count,
                    -(-batch_size // self.count) * self.count,
                }
            )
            raise ImpossiblePlan(
                f"batch_size: {batch_size} cannot be shared equally by {self.count} workers"
                f" (TF_CONFIG); use {' or '.join(map(str, fitting))}"
            )
        if examples < self.count:
            raise ImpossiblePlan(
                f"there are fewer examples than the {self.count} workers of TF_CONFIG, of which"
                " each needs one"
            )


def training_worker_from_tf_config(environment: Mapping[str, str]) -> TrainingWorker:
    """Which of several workers this is, as TF_CONFIG configures tf.distribute: the chief first,
    then the workers. The only one where it is not set.

    Raises:
      ImpossiblePlan: TF_CONFIG does not say that, so that workers could train on the same examples.
    """
    text = environment.get("TF_CONFIG") or "{}"
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
            f"TF_CONFIG: cluster.{others[0]} takes no part in reading a snapshot; name a chief and"
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
    return TrainingWorker(index=index + (counts["chief"] if kind == "worker" else 0), count=count)
