"""What is asked of PyTorch, which this environment lacks: of stand-ins for its parts."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from whowaits.hooks.fits import FitWatch
from whowaits.hooks.loops import LoopWatch
from whowaits.hooks.torch import _Hooks, copy_batch
from whowaits.session import Options, Session
from whowaits.timing.accelerators import default_accelerator, synchronize
from whowaits.timing.waits import Waits


@dataclass(frozen=True)
class Device:
    type: str
    index: int | None = None


class Kind:
    """A module such as `torch.cuda`, which notes what is waited for."""

    def __init__(self, available=True):
        self.available, self.waited_for = available, []

    def is_available(self):
        return self.available

    is_initialized = is_available

    def current_device(self):
        return 0

    def synchronize(self, *device):
        self.waited_for.append(device)


def make_torch(**kinds):
    return SimpleNamespace(
        device=Device,
        is_grad_enabled=lambda: True,
        distributed=SimpleNamespace(is_available=lambda: False),
        strided="strided",
        **{"cuda": Kind(available=False), **kinds},
    )


def make_hooks():
    session = Session(Options(keep=True), print)
    return _Hooks(FitWatch(session, Waits()), LoopWatch(session))


class Optimizer:
    def __init__(self, *devices):
        self.param_groups = [{"params": [SimpleNamespace(device=each)]} for each in devices]


class Iterator:
    """Of a loader: `__next__` is what PyTorch's base class of iterators has."""

    _num_workers = 2

    def __next__(self):
        return [1]


@pytest.fixture
def run_loop(monkeypatch):
    """Train on the batches of an iterator that no `__iter__` of DataLoader has made."""

    def run(torch, *devices):
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(Iterator, "__next__", Iterator.__next__)
        hooks = make_hooks()
        loader = type("DataLoader", (), {"__iter__": iter})
        hooks.patch_loader(SimpleNamespace(DataLoader=loader, _BaseDataLoaderIter=Iterator))
        iterator, optimizer = Iterator(), Optimizer(*devices)
        for _ in range(5):
            next(iterator)
            hooks._mark(optimizer, (), {})
        (training,) = hooks._loops.session.trainings
        return training

    return run


def test_the_loop_over_a_loader_with_iterators_of_its_own_is_timed(run_loop):
    training = run_loop(make_torch(), Device("cpu"))
    assert training.name.startswith("the loop at ") and "test_torch_hooks.py:" in training.name
    assert not training.on_accelerator and training.synchronous


def test_a_batch_of_a_fit_is_waited_for_once_and_by_the_thread_that_trains(monkeypatch):
    now, hooks = [0.0], make_hooks()
    monkeypatch.setattr("whowaits.timing.waits.perf_counter", lambda: now[0])

    class Nested(Iterator):
        """As of the loader that Keras on PyTorch makes of a dataset of tf.data."""

        def __next__(self):
            return hooks._fits.take(self.wait)

        def wait(self):
            now[0] += 1.0
            return [1]

    loader = type("DataLoader", (), {"__iter__": iter})
    hooks.patch_loader(SimpleNamespace(DataLoader=loader, _BaseDataLoaderIter=Nested))
    hooks._fits.active = True
    assert next(Nested()) == [1]
    assert hooks._fits.waits.take() == 1.0
    thread = threading.Thread(target=next, args=(Nested(),))
    thread.start()
    thread.join()
    assert now == [2.0] and hooks._fits.waits.take() == 0.0


def test_a_loader_that_is_begun_again_in_another_line_is_the_same_training(monkeypatch):
    class Loader:
        def __iter__(self):
            return Three()

    class Three(Iterator):
        left = 3

        def __next__(self):
            if not self.left:
                raise StopIteration
            self.left -= 1
            return [1]

    monkeypatch.setitem(sys.modules, "torch", make_torch())
    hooks, loader, optimizer = make_hooks(), Loader(), Optimizer(Device("cpu"))
    hooks.patch_loader(SimpleNamespace(DataLoader=Loader, _BaseDataLoaderIter=Three))
    batches = iter(loader)
    for _ in range(20):
        try:
            next(batches)
        except StopIteration:
            batches = iter(loader)
            next(batches)
        hooks._mark(optimizer, (), {})
    (training,) = hooks._loops.session.trainings
    assert training.timing.seen == 18 and training.timing.steps_per_epoch == 3


def test_a_loop_that_trains_with_an_optimizer_of_keras_is_one(monkeypatch):
    class KerasOptimizer:
        def apply(self, gradients, variables):
            return len(gradients)

    monkeypatch.setitem(sys.modules, "torch", make_torch())
    hooks, steps = make_hooks(), []
    for name in ("tensorflow", "torch"):  # another backend's steps are seen elsewhere
        keras = SimpleNamespace(
            backend=SimpleNamespace(backend=lambda name=name: name),
            optimizers=SimpleNamespace(Optimizer=KerasOptimizer),
        )
        hooks.patch_keras(keras)
        assert KerasOptimizer().apply([1, 2], []) == 2
        steps.append(hooks._loops.marks)
    assert steps == [0, 1]


def test_the_devices_of_the_parameters_are_waited_for(run_loop):
    torch: Any = make_torch(xpu=Kind(), mps=Kind(), cuda=Kind())
    devices = [Device(kind) for kind in ("cpu", "xpu", "mps", "xla")]
    training = run_loop(torch, *devices, Device("cuda", 1))
    assert training.on_accelerator and not training.synchronous
    training.timing.settle()
    assert torch.xpu.waited_for == [(devices[1],)] and torch.mps.waited_for == [()]
    assert {device.index for (device,) in torch.cuda.waited_for} == {0, 1}


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu", ""])
def test_keras_trains_on_the_accelerator_that_there_is(kind):
    torch = make_torch(**{each: Kind(each == kind) for each in ("cuda", "mps", "xpu")})
    assert default_accelerator(torch) == kind
    if kind:
        synchronize(torch, kind)
        assert getattr(torch, kind).waited_for == [()]


class Tensor:
    layout, shape = "strided", (1,)

    def __init__(self, values, pinned):
        self.values, self.pinned, self.data = values, pinned, self

    def is_pinned(self):
        return self.pinned

    def pin_memory(self):
        return Tensor(self.values, pinned=True)

    def __deepcopy__(self, memo):
        return Tensor(list(self.values), pinned=False)  # as a copy of PyTorch's is


@pytest.mark.parametrize("cuda", [False, True])
def test_a_copy_of_a_batch_is_pinned_where_the_batch_is(cuda):
    batch = {"x": Tensor([1], pinned=True), "y": [Tensor([2], pinned=False)]}
    copied = copy_batch(make_torch(cuda=Kind(available=cuda)), batch)
    assert copied["x"].data.is_pinned() == cuda and not copied["y"][0].data.is_pinned()
    assert copied["x"] is not batch["x"] and copied["y"][0].values == [2]
