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

    If an item fails, pending items are canceled. `workers` is the number of threads; a Dask
    cluster has its own. For a cluster, `function` and items are pickled; messages name an item by
    its `str`.
    """
    return _CURRENT.get()(function, items, workers=workers)


@contextmanager
def use_engine(*, address: str = "", workers: int = 0) -> Iterator[None]:
    """Run the work of the block on a Dask cluster.

    Use the cluster whose scheduler is at `address`, or start `workers` local workers. Without
    either, the work runs in threads.

    Raises:
      EngineFailed: Dask is not installed, or the cluster cannot be used; the message says why.
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
