"""What the processes that train together exchange besides gradients: whether they have begun with
the same work and arrived at the same weights.

Each process has one replica of the model in a MultiWorkerMirroredStrategy, and feeds it its own
slice of every batch. A process that is the only one has no strategy and exchanges nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from throughline.plan.training_workers import TrainingWorker
from throughline.settings import TrainSettings
from throughline.shared.errors import ImpossiblePlan, ProcessesDiffer, ProcessLost
from throughline.training.deadline import Deadline
from throughline.training.step_function import StepFunction

RANDOM_STATE = "seed_generator_state"  # as Keras names the variables of random layers
LONGEST_REASON = 300  # of what TensorFlow says
# What a collective operation raises where another process is gone or has raised.
LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """This process among those that train together; `deadline` ends it where it waits too long."""

    worker: TrainingWorker = field(default_factory=TrainingWorker)
    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)
    deadline: Deadline = field(default_factory=Deadline)
    timeout_s: float = float("inf")

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.worker.count > 1

    @property
    def is_chief(self) -> bool:
        """Whether this is the process that writes."""
        return self.worker.index == 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Where a model is made, compiled and first run, so that all processes have it alike."""
        return self.strategy.scope() if self.several else contextlib.nullcontext()

    def exchange(self, values: Sequence[int], *, timeout_s: float | None = None) -> np.ndarray:
        """What every process gives here, (processes, values) int64; waits for the last one.

        Raises:
          ProcessLost: another one is gone.
        """
        own = np.asarray(values, np.int64)
        if not self.several:
            return own[None]
        limit = self.timeout_s if timeout_s is None else timeout_s
        with explain_losses(self.worker), self.deadline.within(limit, "an exchange"):
            gathered = self._gather(tf.constant(own[None]))
        return np.asarray(gathered)

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        """Run the block in the chief, then in all others."""
        if not self.is_chief:
            self.exchange([0])
        yield
        if self.is_chief:
            self.exchange([0])

    def wait_for_chief(self) -> None:
        """Wait until the chief, too, is here, however long what it writes takes."""
        self.exchange([0], timeout_s=float("inf"))

    def check_same(self, parts: Mapping[str, str | int], *, remedy: str) -> None:
        """Check that parts of the work, each a value or digest, are those of the chief.

        Raises:
          ProcessesDiffer: names the parts and the process.
        """
        names = sorted(parts)
        digests = self.exchange([digest_to_int(str(parts[name]).encode()) for name in names])
        for number, theirs in enumerate(digests):
            differing = [
                name
                for name, one, other in zip(names, digests[0], theirs, strict=True)
                if one != other
            ]
            if differing:
                raise ProcessesDiffer(
                    f"process {number} of {self.worker.count} differs from the first in"
                    f" {', '.join(differing)}; {remedy}"
                )

    def check_weights(self, model: keras.Model) -> None:
        """Check that all processes have the same weights, bit for bit.

        Raises:
          ProcessesDiffer: they have not.
        """
        if self.several:
            content = b"".join(
                np.asarray(one).tobytes() for one in model.variables if one.name != RANDOM_STATE
            )
            self.check_same(
                {"weights": digest_to_int(content)},
                remedy="a layer keeps what it has seen of its own slice of the batches, or an"
                " operation is not repeatable; train in one process",
            )

    def make_random_layers_differ(self, model: keras.Model) -> None:
        """Let the random layers of each process draw numbers of their own, given the chief's state:
        with the same, dropout would have one mask for all slices.
        """
        if self.is_chief:
            return
        for variable in model.variables:
            if variable.name == RANDOM_STATE:
                seed, *rest = np.asarray(variable).tolist()
                drawn = digest_to_int(f"{seed} {self.worker.index}".encode()) % (1 << 32)
                variable.assign(np.asarray([drawn, *rest], variable.dtype))

    @cached_property
    def _gather(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """The function from (1, values) int64 to those of all processes (processes, values)."""

        def gather(own: tf.Tensor) -> tf.Tensor:
            context: Any = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(own), axis=0)  # which is on a device

        return tf.function(
            lambda own: self.strategy.run(gather, args=(own,)),
            input_signature=[tf.TensorSpec((1, None), tf.int64)],
            autograph=False,
        )


def join(worker: TrainingWorker, addresses: Sequence[str], settings: TrainSettings) -> Replicas:
    """Meet the other processes, at `addresses`; the only one meets nobody.

    Raises:
      ImpossiblePlan: this process sees several GPUs, or its address is taken.
      ProcessLost: another one has failed meanwhile.
    """
    if worker.count == 1:
        return Replicas(worker=worker)
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:
        raise ImpossiblePlan(
            f"{worker} sees {len(gpus)} GPUs, and each process trains on one; set"
            " CUDA_VISIBLE_DEVICES for each (with Slurm: --gpus-per-task=1)"
        )
    check_port(addresses[worker.index])
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=communication.NCCL if gpus else communication.RING
    )
    deadline = Deadline(worker, addresses)
    with explain_losses(worker), deadline.start_within(settings.start_timeout_s):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        replicas = Replicas(
            worker=worker,
            strategy=strategy,
            deadline=deadline,
            timeout_s=settings.step_timeout_s,
        )
        replicas.exchange([worker.index], timeout_s=settings.start_timeout_s)
    return replicas


def check_port(address: str) -> None:
    """Check that this host can listen where the others will look for this process.

    Raises:
      ImpossiblePlan: another program listens there.
    """
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ImpossiblePlan(
                f"TF_CONFIG: port {port} of {address} cannot be used on this host"
                f" ({error.strerror}); give this process another one"
            ) from error


def synchronize_normalization(model: keras.Model) -> None:
    """Have every BatchNormalization take mean and variance of the whole batch, also of models that
    are layers, such as those of keras.applications.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


@contextlib.contextmanager
def explain_losses(worker: TrainingWorker) -> Iterator[None]:
    """Say of what TensorFlow raises where other processes are gone that they are.

    Raises:
      ProcessLost: instead, with the process that TensorFlow names.
    """
    if worker.count == 1:
        yield
        return
    try:
        yield
    except tf.errors.OpError as error:
        lines = str(error).splitlines()
        named = [line for line in lines if "Collective ops" in line]
        if not named and not isinstance(error, LOST):
            raise
        tasks = {int(number) for number in re.findall(r"task:(\d+)", str(error))} - {worker.index}
        others = set(range(worker.count)) - {worker.index}
        tasks = tasks or (others if len(others) == 1 else tasks)
        which = ", ".join(f"process {number}" for number in sorted(tasks)) or "another process"
        raise ProcessLost(
            f"{worker} has lost {which}: {(named or lines)[0][:LONGEST_REASON]}\nThe same command"
            " goes on from the last checkpoint"
        ) from error


def digest_to_int(content: bytes) -> int:
    """A digest of bytes as an int64."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True)


class StepDeadline(keras.callbacks.Callback):
    """Ends a process whose step, with what callbacks do after it, takes too long, and compares the
    weights after each epoch; the first of the callbacks.
    """

    def __init__(
        self, replicas: Replicas, train_function: StepFunction, settings: TrainSettings
    ) -> None:
        super().__init__()
        self._replicas, self._deadline = replicas, replicas.deadline
        self._train_function, self._settings = train_function, settings

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin to wait for a step."""
        settings = self._settings
        building = self._train_function.builds_graph
        limit = settings.start_timeout_s if building else settings.step_timeout_s
        self._deadline.begin(limit, f"step {batch + 1:,} of its epoch")

    def on_test_begin(self, logs: Any = None) -> None:
        """Wait for nobody: each process evaluates by itself."""
        self._deadline.end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare the weights of all processes."""
        if self.model is not None:
            self._replicas.check_weights(self.model)
