"""Shows whether a changed copy of a DataLoader delivers the same batches: each pass runs in a
forked process, so that the training's dataset, samplers and random states stay as they are.
"""

import contextlib
import json
import os
import select
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from whowaits.timing.batches import leaves

from .advice import DRAWS, SAME, UNSHOWN
from .loaders import LoaderChange, copy_loader, is_iterable
from .passes import LEAST_BATCHES, compare, digest_epoch

PASS_S, SLOW_PASS_S = 3.0, 8.0  # for a pass with enough batches to compare, and with too few
SPARE_S = 8.0  # in addition, for processes to start and a batch to come
UNCHANGED = LoaderChange()
DIFFERS = "differs"


class LoaderProof:
    """Compares passes of the unchanged loader with passes of changed copies, under equal seeds."""

    def __init__(self, torch: Any, loader: Any) -> None:
        self._torch, self._loader = torch, loader
        self._own: dict[bool, Any] = {}  # passes of the unchanged loader

    def compare(self, change: LoaderChange) -> tuple[str, str]:
        """Return SAME, ORDER, DRAWS or UNSHOWN for a change's batches, and a sentence or ""."""
        kind, says = self._compare(change, by_example=False)
        if kind != DIFFERS:
            return kind, says
        maps = not is_iterable(self._torch, self._loader)  # so each example can be drawn by itself
        if maps and self._compare(change, by_example=True)[0] == SAME:
            return DRAWS, ""
        return UNSHOWN, says

    def _compare(self, change: LoaderChange, *, by_example: bool) -> tuple[str, str]:
        known, other = self._own.get(by_example), self.digest(change, by_example=by_example)
        if known is None or not _are_alike(known, other):
            # Compared with a pass from the same state: samplers may count their passes.
            self._own[by_example] = self.digest(UNCHANGED, by_example=by_example)
        own = self._own[by_example]
        for each, what in ((own, "the unchanged loader"), (other, "the changed loader")):
            if "failed" in each:
                return UNSHOWN, f"what it delivers was not seen: {what} {each['failed']}"
        kind, says = compare(own, other, "batches")
        if kind:
            return kind, says
        (one,), (two,) = own["epochs"], other["epochs"]
        whole = own["whole"] and other["whole"]
        if whole and one["count"] != two["count"]:
            return DIFFERS, f"an epoch has {two['count']} examples in place of {one['count']}"
        pairs = list(zip(one["in_order"], two["in_order"]))
        if not whole and all(a == b for a, b in pairs):
            return UNSHOWN, f"too few batches could be compared: {len(pairs)}, all equal"
        because = "" if whole else ": an epoch is too long to compare all of it"
        return DIFFERS, f"it could not be shown that it delivers the same examples{because}"

    def digest(self, change: LoaderChange, *, by_example: bool) -> Any:
        """Digest a pass; if `by_example`, with random draws seeded by the example's index."""
        return run_forked(
            lambda: _digest(self._torch, self._loader, change, by_example),
            limit_s=SLOW_PASS_S + SPARE_S,
        )


def _are_alike(one: Any, other: Any) -> bool:
    return not {"failed"} & {*one, *other} and bool(compare(one, other, "batches")[0])


def run_forked(function: Callable[[], Any], *, limit_s: float) -> Any:
    """Return a function's result, sent as JSON, from a forked process, or {"failed": why}."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _answer(function, writes, limit_s)
    os.close(writes)
    answer, deadline = b"", perf_counter() + limit_s
    try:
        with os.fdopen(reads, "rb", buffering=0) as pipe:
            while select.select([pipe], [], [], max(0.0, deadline - perf_counter()))[0]:
                part = pipe.read(1 << 16)
                if not part:
                    break
                answer += part
    finally:
        for kill, whom in ((os.killpg, child), (os.kill, child)):  # with its workers
            with contextlib.suppress(ProcessLookupError):
                kill(whom, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        return json.loads(answer)
    except ValueError:
        return {"failed": f"gave no answer, or not within {limit_s:.0f} s"}


def _answer(function: Callable[[], Any], writes: int, limit_s: float) -> None:
    """Write a function's result in the forked process, and end it without any clean-up."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(limit_s) + 1)  # so it ends even if the training is killed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        try:
            found = function()
        except BaseException as error:  # noqa: BLE001 - goes to the parent
            found = {"failed": f"failed with {type(error).__name__}: {error}"}
        with os.fdopen(writes, "w") as pipe:
            json.dump(found, pipe)
    finally:
        os._exit(0)


def _digest(torch: Any, loader: Any, change: LoaderChange, by_example: bool) -> dict[str, Any]:
    torch.set_num_threads(1)  # a fork has none of the training's threads
    dataset = _make_drawn_by_index(torch, loader.dataset) if by_example else None
    copied = copy_loader(torch, loader, change, dataset)
    _seed(torch, 0)
    for owner in (loader, loader.sampler, loader.batch_sampler):
        generator = getattr(owner, "generator", None)
        if generator is not None:
            generator.manual_seed(0)
    began = perf_counter()

    def is_over(batches: int) -> bool:
        seconds = perf_counter() - began
        return seconds > SLOW_PASS_S or (seconds > PASS_S and batches >= LEAST_BATCHES)

    epoch, whole = digest_epoch(copied, _arrays_of, is_over)
    return {"epochs": [epoch], "whole": whole}


def _arrays_of(batch: Any) -> list[Any]:
    return [part.numpy() if hasattr(part, "numpy") else part for part in leaves(batch)]


def _seed(torch: Any, seed: int) -> None:
    torch.manual_seed(seed)
    for name, draws in (("random", "seed"), ("numpy.random", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], draws)(seed)


@contextlib.contextmanager
def _own_draws(torch: Any, seed: int) -> Iterator[None]:
    """Seed random draws in the block; afterwards restore their states from before."""
    python, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    states = torch.get_rng_state(), python and python.getstate(), numpy and numpy.get_state()
    _seed(torch, seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        if python:
            python.setstate(states[1])
        if numpy:
            numpy.set_state(states[2])


def _make_drawn_by_index(torch: Any, dataset: Any) -> Any:
    """Return the dataset with random draws seeded by the example's index, in any process."""

    class DrawnByIndex(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, index: Any) -> Any:
            with _own_draws(torch, zlib.crc32(repr(index).encode())):
                return dataset[index]

    return DrawnByIndex()
