"""The engine that runs the work of a stage on single shards and files: threads of its process, or
the workers of a Dask cluster. Outputs are the same bytes, so the engine is part of no key.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from throughline.shared.errors import EngineFailed
from throughline.shared.progress import in_threads

T = TypeVar("T")
R = TypeVar("R")


_CURRENT: ContextVar[Callable[..., Iterator[Any]]] = ContextVar("engine", default=in_threads)


def in_parallel(function: Callable[[T], R], items: Iterable[T], *, workers: int) -> Iterator[R]:
    """Yield function(item) for all items in their order, computed by the stage's engine.

    If an item fails, pending items are canceled. `workers` is the number of threads; a Dask cluster
    has its own, and gets `function` and items pickled. Messages name an item by its `str`.
    """
    return _CURRENT.get()(function, items, workers=workers)


@contextmanager
def use_engine(*, address: str = "", workers: int = 0) -> Iterator[None]:
    """Run the work of the block in threads, or on a Dask cluster.

    The cluster has its scheduler at `address`, or is local with this number of `workers`. Raises
    EngineFailed if Dask is not installed, or the cluster cannot be used.
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
