"""Exchanges digests, weights and measurements between processes that train together.

Each process has one replica of the model in a MultiWorkerMirroredStrategy, and feeds it its own
slice of every batch. A single process has no strategy and exchanges nothing.
"""

import contextlib
import hashlib
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import Any

import numpy as np
import tensorflow as tf

from throughline.plan.training_workers import TrainingWorker
from throughline.settings import TrainSettings
from throughline.shared.errors import ImpossiblePlan, ProcessesDiffer, ProcessLost
from throughline.training.deadline import Deadline

LONGEST_REASON = 300  # characters of TensorFlow's message
# Errors of a collective operation if another process is gone or has failed.
LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """This process among those that train together; `deadline` ends it if it waits too long."""

    worker: TrainingWorker = field(default_factory=TrainingWorker)
    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)
    deadline: Deadline = field(default_factory=Deadline)
    timeout_s: float = float("inf")

    @property
    def several(self) -> bool:
        return self.worker.count > 1

    @property
    def is_chief(self) -> bool:
        return self.worker.index == 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the scope in which to build, compile and first run the model of all processes."""
        return self.strategy.scope() if self.several else contextlib.nullcontext()

    def exchange(self, values: Sequence[int], *, timeout_s: float | None = None) -> np.ndarray:
        """Gather the `values` of every process, (processes, values) int64; waits for all of them.

        Raises ProcessLost if another process is gone. After the time limit, this process exits.
        """
        own = np.asarray(values, np.int64)
        if not self.several:
            return own[None]
        limit = self.timeout_s if timeout_s is None else timeout_s
        with explain_losses(self.worker), self.deadline.within(limit, "an exchange"):
            gathered = self._gather(tf.constant(own[None]))
        return np.asarray(gathered)

    def take_chiefs(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the chief's values for these names; waits and raises as `exchange` does."""
        bits = np.asarray([*values.values()], np.float64).view(np.int64)
        chiefs = self.exchange(bits.tolist())[0].copy().view(np.float64)
        return dict(zip(values, chiefs.tolist(), strict=True))

    def is_any(self, here: bool) -> bool:
        """Return whether `here` is true in any process; waits and raises as `exchange` does."""
        return bool(self.exchange([int(here)]).any())

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        if not self.is_chief:
            self.exchange([0])
        yield
        if self.is_chief:
            self.exchange([0])

    def wait_for_chief(self) -> None:
        """Wait until the chief arrives here, however long it takes."""
        self.exchange([0], timeout_s=float("inf"))

    def check_same(self, parts: Mapping[str, str | int], *, remedy: str) -> None:
        """Raise ProcessesDiffer if parts of the work (values, digests) differ from the chief's."""
        names = sorted(parts)
        digests = self.exchange([digest_to_int(str(parts[name]).encode()) for name in names])
        for number, differs in enumerate(digests != digests[0]):
            if differs.any():
                raise ProcessesDiffer(
                    f"process {number} of {self.worker.count} differs from the first in"
                    f" {', '.join(compress(names, differs))}; {remedy}"
                )

    @cached_property
    def _gather(self) -> Callable[[tf.Tensor], tf.Tensor]:
        def gather(own: tf.Tensor) -> tf.Tensor:
            context: Any = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(own), axis=0)  # identity puts it on a device

        run, rows = partial(self.strategy.run, gather), tf.TensorSpec((1, None), tf.int64)
        return tf.function(lambda own: run(args=(own,)), input_signature=[rows], autograph=False)


def join(worker: TrainingWorker, addresses: Sequence[str], settings: TrainSettings) -> Replicas:
    """Connect to the other processes at `addresses`; a single process connects to none.

    Raises ImpossiblePlan if this process sees several GPUs or its port is taken; and ProcessLost.
    """
    if worker.count == 1:
        return Replicas(worker=worker)
    gpus = count_training_gpus()
    if gpus > 1:
        raise ImpossiblePlan(
            f"{worker} sees {gpus} GPUs, but each process trains on one; set"
            " CUDA_VISIBLE_DEVICES for each process (with Slurm: --gpus-per-task=1)"
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
    # TensorFlow has installed a handler that notes SIGTERM but does not end the process.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
    return replicas


def count_training_gpus() -> int:
    """Count the GPUs that TensorFlow computes on, maybe fewer than CUDA shows; takes no memory."""
    return len(tf.config.list_physical_devices("GPU"))


def check_port(address: str) -> None:
    """Raise ImpossiblePlan if this process's port is in use, by IPv4 or IPv6, or not permitted."""
    port, both = int(address.rpartition(":")[2]), socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise ImpossiblePlan(
            f"TF_CONFIG: port {port} of {address} cannot be used on this host"
            f" ({error.strerror}); give this process another port"
        ) from error


@contextlib.contextmanager
def explain_losses(worker: TrainingWorker) -> Iterator[None]:
    """Raise ProcessLost for errors of TensorFlow because other processes are gone; names them."""
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
            " continues from the last checkpoint"
        ) from error


def digest_to_int(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True)
