"""Where TensorFlow and PyTorch give a batch, and where they train. PyTorch is a stand-in."""

import contextlib
import functools
import importlib
import sys
from collections import namedtuple
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import input_lib

from whowaits.changes.advice import SHARED
from whowaits.changes.loader_trials import LoaderTrials
from whowaits.changes.loaders import LoaderChange
from whowaits.hooks import tensorflow as tensorflow_hooks
from whowaits.hooks import torch as torch_hooks
from whowaits.hooks.fits import FitWatch
from whowaits.hooks.loops import LoopWatch
from whowaits.imports import ImportWatch
from whowaits.session import Ended, Options, Session
from whowaits.timing.blocks import Timing
from whowaits.timing.waits import Waits

pytestmark = pytest.mark.integration


def test_a_module_is_acted_on_once_it_is_complete_and_not_before(tmp_path, monkeypatch):
    (tmp_path / "watched.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setitem(sys.modules, "watched", None)
    del sys.modules["watched"]
    seen, errors = [], []
    watch = ImportWatch(errors.append)
    watch.install()
    watch.on_import("watched", lambda module: module.nothing)
    watch.on_import("watched", lambda module: seen.append(module.value))
    assert not seen and "watched" not in sys.modules
    loader = importlib.import_module("watched").__loader__
    assert seen == [1]
    assert [type(error) for error in errors] == [AttributeError], "which fails no import"
    assert loader.get_source("watched") == "value = 1\n"


def make_hooks(module, **options):
    session = Session(Options(**{"keep": True, **options}), print)
    return module._Hooks(FitWatch(session, Waits()), LoopWatch(session))


@pytest.mark.parametrize("distributed", [False, True])
def test_epochs_that_are_left_early_are_of_one_training(monkeypatch, distributed):
    hooks = make_hooks(tensorflow_hooks)
    for module, kind in ((iterator_ops, "OwnedIterator"), (input_lib, "DistributedIteratorBase")):
        for name in ("__next__", "get_next", "get_next_as_optional"):
            monkeypatch.setattr(getattr(module, kind), name, vars(getattr(module, kind))[name])
        hooks.patch_iterators(module)
    dataset = tf.data.Dataset.range(40).batch(1)
    if distributed:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
        dataset = strategy.experimental_distribute_dataset(dataset)
    for steps in (5, 5, 5, 99):  # the last epoch ends with its data
        for _ in zip(range(steps), dataset, strict=False):
            hooks._loops.mark()
    (training,) = hooks._loops.session.trainings
    assert len(training.timing.epochs) == 4
    assert training.timing.seen == 55 - 1 - 3, "not the first step, nor those that left an epoch"
    assert ("distribution strategy" in training.passive_because) is distributed


def test_a_batch_with_nothing_in_a_place_is_waited_for_within_a_graph():
    waits = Waits()
    waits.start(tf)
    iterator = iter(tf.data.Dataset.range(9).map(lambda n: (n, 2 * n, None)))

    @tf.function
    def step():
        return waits.time(lambda: next(iterator))

    assert [None if each is None else int(each) for each in step()] == [0, 0, None]
    assert waits.take() > 0


@pytest.mark.parametrize("keep", [False, True])
def test_a_parameter_server_is_refused_when_it_is_made(keep):
    kinds, own = ("ParameterServerStrategyV2", "OneDeviceStrategy"), {"__init__": lambda _: None}
    module = SimpleNamespace(**{kind: type(kind, (), {**own}) for kind in kinds})
    hooks = make_hooks(tensorflow_hooks, keep=keep)
    hooks.patch_refused(module)
    module.OneDeviceStrategy()
    assert not hooks._loops.session.refusal
    with contextlib.nullcontext() if keep else pytest.raises(Ended):
        module.ParameterServerStrategyV2()  # with keep=True the script trains on, untimed
    report = hooks._loops.session.make_report()
    assert report.reason.startswith("a ParameterServerStrategyV2 was made")


Device = namedtuple("Device", ["type", "index"], defaults=[None])


class Iterator:
    """Of a loader: `__next__` is what PyTorch's base class of iterators has."""

    _num_workers = 2

    def __init__(self, batches=99):
        self._batches = iter([[1]] * batches)

    def __next__(self):
        return next(self._batches)


class Loader:
    def __iter__(self):
        return Iterator(3)


def run_loop(monkeypatch, *devices, begin=Iterator, steps=5, kinds=None, **options):
    """Train on batches of the iterator that is returned by a function at first, and at its end."""
    torch = SimpleNamespace(
        device=Device,
        is_grad_enabled=lambda: True,
        distributed=SimpleNamespace(is_available=lambda: False),
        **(kinds or {"cuda": Mock(**{"is_initialized.return_value": False})}),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(Iterator, "__next__", Iterator.__next__)
    monkeypatch.setattr(Loader, "__iter__", Loader.__iter__)
    hooks = make_hooks(torch_hooks, **options)
    optimizer = Mock(param_groups=[{"params": [Mock(device=each)]} for each in devices])
    hooks.patch_loader(SimpleNamespace(DataLoader=Loader, _BaseDataLoaderIter=Iterator))
    batches = begin()
    for _ in range(steps):
        if next(batches, None) is None:
            batches = begin()
            next(batches)
        hooks._mark(optimizer, (), {})
    (loop,) = hooks._loops.session.loops.values()
    return loop


def test_no_schedule_goes_on_in_steps_on_batches_from_memory(monkeypatch):
    hooks, steps = make_hooks(torch_hooks), []
    own = type("Schedule", (), {"step": steps.append, "__module__": __name__})
    hooks.patch_schedules(SimpleNamespace(__name__=__name__, Schedule=own, Other=Iterator))
    schedule = own()
    schedule.step()
    monkeypatch.setattr(LoopWatch, "repeats", True)
    schedule.step()
    assert steps == [schedule]


@pytest.mark.parametrize(("steps", "ends"), [(-1, (-1, 1e6)), (100, (10**9, 3.0))])
def test_a_trainer_gets_more_steps_or_epochs_whichever_ended_it(steps, ends):
    """Of transformers, whose Trainer refuses a stream without `max_steps`."""
    own = type("TrainingArguments", (), {"__post_init__": lambda _: None})
    make_hooks(torch_hooks, keep=False).patch_arguments(SimpleNamespace(TrainingArguments=own))
    arguments = own()
    arguments.max_steps, arguments.num_train_epochs = steps, 3.0
    arguments.__post_init__()
    assert (arguments.max_steps, arguments.num_train_epochs) == ends


def test_the_devices_of_the_parameters_are_waited_for(monkeypatch):
    kinds = {"cuda": Mock(**{"current_device.return_value": 0}), "xpu": Mock(), "mps": Mock()}
    devices = [*(Device(kind) for kind in ("cpu", "xpu", "mps", "xla")), Device("cuda", 1)]
    training = run_loop(monkeypatch, *devices, kinds=kinds).training
    assert training.name.startswith("the loop at ") and "test_hooks.py:" in training.name
    assert training.on_accelerator and not training.synchronous
    training.timing.settle()
    kinds["xpu"].synchronize.assert_called_once_with(devices[1])
    kinds["mps"].synchronize.assert_called_once_with()
    assert {call.args[0].index for call in kinds["cuda"].synchronize.mock_calls} == {0, 1}


Stream = type("Stream", (), {})


@pytest.mark.parametrize(
    ("other", "alters"),
    [(SimpleNamespace(), False), (Stream(), True), (SimpleNamespace(file=sys.__stdout__), True)],
)
def test_workers_that_would_repeat_or_share_the_data_of_a_validation_are_no_patch(other, alters):
    class DataLoader:
        num_workers = 0
        sampler = batch_sampler = collate_fn = pin_memory = timeout = worker_init_fn = None
        generator = multiprocessing_context = persistent_workers = prefetch_factor = None

        def __init__(self, dataset, **_):
            self.dataset = dataset

    torch = SimpleNamespace(utils=SimpleNamespace(data=Mock(IterableDataset=Stream)))
    make_hooks(torch_hooks)._patch_init(DataLoader)
    train, validation = map(DataLoader, (SimpleNamespace(), other))
    trials = LoaderTrials(torch, train, train.whowaits_place, Timing(1.0), deadline=0.0)
    tried = trials._describe(LoaderChange((("num_workers", 2),)), 0, 1.0, 1.0, 1.0)
    assert tried.alters_another is alters and (SHARED in tried.says) is alters
    assert validation.whowaits_place == train.whowaits_place


def test_a_loader_that_is_begun_again_in_another_line_is_the_same_training(monkeypatch):
    begin = functools.partial(iter, Loader())
    training = run_loop(monkeypatch, Device("cpu"), begin=begin, steps=20).training
    assert training.timing.seen == 18 and training.timing.steps_per_epoch == 3
    assert not training.on_accelerator and training.synchronous


def test_a_loader_that_only_its_loop_holds_is_tried_and_one_that_is_gone_is_said(monkeypatch):
    """As in `for batch in DataLoader(…)`; a script that is kept may need the memory."""
    given = {"begin": lambda: iter(Loader()), "steps": 20}
    kept = run_loop(monkeypatch, Device("cpu"), **given)
    assert not [*kept.source.tries(kept.training)]
    assert kept.training.notes == ["no change is tried: the script does not keep its DataLoader"]
    monkeypatch.undo()
    monkeypatch.setattr(torch_hooks._Hooks, "_try_changes", lambda *given: given[2])
    ended = run_loop(monkeypatch, Device("cpu"), keep=False, **given)
    assert isinstance(ended.source.tries(ended.training), Loader)
