"""What the processes that train together exchange besides gradients: whether they have begun with
the same work and arrived at the same weights, and what each has measured.

Each process has one replica of the model in a MultiWorkerMirroredStrategy, and feeds it its own
slice of every batch. A process that is the only one has no strategy and exchanges nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from throughline.plan.training_workers import TrainingWorker
from throughline.settings import TrainSettings
from throughline.shared.errors import ImpossiblePlan, ProcessesDiffer, ProcessLost
from throughline.training.deadline import Deadline
from throughline.training.gpus import count_training_gpus

Value = TypeVar("Value")
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

    def take_chiefs(self, values: Mapping[str, float]) -> dict[str, float]:
        """What the chief has for these names, of which every process has its own; waits for all.

        Raises:
          ProcessLost: another one is gone.
        """
        bits = np.asarray([*values.values()], np.float64).view(np.int64)
        chiefs = self.exchange(bits.tolist())[0].copy().view(np.float64)
        return dict(zip(values, chiefs.tolist(), strict=True))

    def is_any(self, here: bool) -> bool:
        """Whether what is so `here`, or is not, is so in any of the processes; waits for all.

        Raises:
          ProcessLost: another one is gone.
        """
        return bool(self.exchange([int(here)]).any())

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
    gpus = count_training_gpus()
    if gpus > 1:
        raise ImpossiblePlan(
            f"{worker} sees {gpus} GPUs, and each process trains on one; set"
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
            worker=worker, strategy=strategy, deadline=deadline, timeout_s=settings.step_timeout_s
        )
        replicas.exchange([worker.index], timeout_s=settings.start_timeout_s)
    # TensorFlow has put a handler in its place that notes SIGTERM, and ends nothing.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    return replicas


def check_port(address: str) -> None:
    """Check that this host can listen where the others will look for this process.

    Raises:
      ImpossiblePlan: another program listens there.
    """
    port = int(address.rpartition(":")[2])
    with _open_socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ImpossiblePlan(
                f"TF_CONFIG: port {port} of {address} cannot be used on this host"
                f" ({error.strerror}); give this process another one"
            ) from error


def _open_socket() -> socket.socket:
    """One of IPv6, which listens to IPv4, too; of IPv4 where the kernel has no IPv6."""
    try:
        return socket.socket(socket.AF_INET6)
    except OSError:
        return socket.socket(socket.AF_INET)


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
