"""Who does the work of a stage on single shards and files: threads of its process, or the workers
of a Dask cluster on this machine or others. The bytes are the same, so it is in no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from throughline.shared.errors import EngineFailed
from throughline.shared.progress import in_threads

T = TypeVar("T")
R = TypeVar("R")


class _Engine(Protocol):
    def __call__(
        self, function: Callable[[T], R], items: Iterable[T], *, workers: int
    ) -> Iterator[R]: ...


_CURRENT: ContextVar[_Engine] = ContextVar("engine", default=in_threads)


def in_parallel(function: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[R]:
    """Yield function(item) for all items in their order, as the engine of this stage does them;
    what is pending is cancelled when one fails. `workers` is the number of threads, where it is
    threads that work. Elsewhere the function is pickled once, and each item, which its `str` names.
    """
    return _CURRENT.get()(function, items, workers=workers)


@contextmanager
def use_engine(*, address: str = "", workers: int = 0) -> Iterator[None]:
    """Do the work of the block with the cluster whose scheduler has this address, or with so many
    workers that are started here; by default with threads.

    Raises:
      EngineFailed: Dask is not installed, or the cluster cannot be used; says why.
    """
    if not address and not workers:
        yield
        return
    try:
        from throughline.shared.dask_engine import open_cluster
    except ModuleNotFoundError as error:
        raise EngineFailed(
            f"engine: {error.name} is not installed; `pip install 'distributed>=2026.8'`, or leave"
            " `engine` out of params.yaml"
        ) from error
    with open_cluster(address=address, workers=workers) as cluster:
        before = _CURRENT.set(cluster)
        try:
            yield
        finally:
            _CURRENT.reset(before)
