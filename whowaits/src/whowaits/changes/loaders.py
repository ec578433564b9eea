"""Possible changes of a PyTorch DataLoader, and copies of it with one change."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from whowaits.timing.batches import leaves

from .advice import Edit

WHOLE = "so that the dataset is asked for whole batches"
MORE_PREFETCHED = 8  # batches that each worker may make ahead, instead of two
MOST_COUNTS = 3  # numbers of workers to try
OF_WORKERS = ("multiprocessing_context", "persistent_workers", "prefetch_factor")
OF_ALL = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator")
# Packages whose open files cannot be shared by processes.
FILES = frozenset(("h5py", "lmdb", "netCDF4", "socket", "sqlite3", "tables", "tarfile", "zipfile"))
made_loaders: WeakSet[Any] = WeakSet()  #: existing loaders, with `whowaits_place`
DEEPEST, MOST_LOOKED_AT = 3, 64  # levels of attributes, and items of each, to look for handles


@dataclass(frozen=True)
class LoaderPlace:
    """The call that sets a loader's keywords: where it is, its name, and its keywords' prefix."""

    where: str = ""
    called: str = "DataLoader"
    prefix: str = ""


@dataclass(frozen=True)
class LoaderChange:
    """Keywords of a DataLoader to set, or whole batches: the dataset gets each batch's indices."""

    keywords: tuple[tuple[str, Any], ...] = ()
    whole: str = ""  #: the sampler of whole batches, as the script would write it
    written: bool = True  #: whether the script can write it so

    def text(self, place: LoaderPlace) -> str:
        if self.whole:
            return f"{place.called}: sampler={self.whole}, batch_size=None, {WHOLE}"
        return f"{place.called}: {', '.join(self._written(place))}"

    def edits(self, place: LoaderPlace) -> tuple[Edit, ...]:
        """Return the edits of the script; () if there are none, or the call was not seen."""
        if not place.where or (self.whole and (place.prefix or not self.written)):
            return ()
        if self.whole:
            return (Edit(place.where, place.called, f"sampler={self.whole}"),)
        return tuple(Edit(place.where, place.called, each) for each in self._written(place))

    def _written(self, place: LoaderPlace) -> list[str]:
        return [f"{place.prefix}{name}={value}" for name, value in self.keywords]

    @property
    def more_workers(self) -> bool:
        return "num_workers" in dict(self.keywords)


def propose_changes(
    loader: Any, *, cores: int, on_cuda: bool, gap_matters: bool
) -> Iterator[LoaderChange]:
    """Yield changes of keywords; `gap_matters` says that gaps between epochs are long."""
    workers = loader.num_workers
    counts = {2 * workers, cores, 2 * cores} if workers else {2, max(1, cores // 2), cores}
    for count in sorted(each for each in counts if each > workers)[:MOST_COUNTS]:
        yield LoaderChange((("num_workers", count),))
    if workers and gap_matters and not loader.persistent_workers:
        yield LoaderChange((("persistent_workers", True),))
    if workers and (loader.prefetch_factor or 0) < MORE_PREFETCHED:
        yield LoaderChange((("prefetch_factor", MORE_PREFETCHED),))
    if on_cuda and not loader.pin_memory:
        yield LoaderChange((("pin_memory", True),))


def propose_whole_batches(torch: Any, loader: Any) -> LoaderChange | None:
    """Return the change to whole batches; None without a batch sampler or default collation."""
    data, batches = torch.utils.data, loader.batch_sampler
    if batches is None or loader.collate_fn is not data.default_collate:
        return None
    if type(batches) is not data.BatchSampler:
        return LoaderChange(whole="the unchanged batch_sampler", written=False)
    sampler = batches.sampler
    of = f"{type(sampler).__name__}(dataset)"
    usual = type(sampler) in (data.RandomSampler, data.SequentialSampler)
    return LoaderChange(
        whole=f"BatchSampler({of}, {batches.batch_size}, {batches.drop_last})",
        written=usual and getattr(sampler, "generator", None) is None,
    )


def gives_whole_batches(torch: Any, loader: Any) -> bool:
    """Return whether the dataset, given several indices, returns their collated examples."""
    data, dataset = torch.utils.data, loader.dataset
    indices = list(next(iter(loader.batch_sampler)))[:2]
    together = list(leaves(data.default_convert(dataset[indices])))
    apart = list(leaves(data.default_collate([dataset[each] for each in indices])))
    return len(together) == len(apart) and all(map(torch.equal, together, apart))


def copy_loader(torch: Any, loader: Any, change: LoaderChange, dataset: Any = None) -> Any:
    """Return a DataLoader of the same parts with a change, and with another `dataset` if given."""
    data = torch.utils.data
    workers = dict(change.keywords).get("num_workers", loader.num_workers)
    kept = {name: getattr(loader, name) for name in (*OF_ALL, *(OF_WORKERS if workers else ()))}
    given = {**kept, **dict(change.keywords)}
    given = {name: value for name, value in given.items() if value is not None}
    given["dataset"] = loader.dataset if dataset is None else dataset
    if is_iterable(torch, loader):
        given.update(batch_size=loader.batch_size, drop_last=loader.drop_last)
    elif change.whole:
        given.update(batch_size=None, sampler=loader.batch_sampler)
        given["collate_fn"] = data.default_convert
    elif loader.batch_sampler is not None:
        given["batch_sampler"] = loader.batch_sampler
    else:
        given.update(batch_size=None, sampler=loader.sampler)
    return data.DataLoader(**given)


def is_iterable(torch: Any, loader: Any) -> bool:
    return isinstance(loader.dataset, torch.utils.data.IterableDataset)


def spoils_another(torch: Any, loader: Any, place: LoaderPlace) -> bool:
    """Return whether the call at `place` also made a loader of a dataset unfit for workers."""
    made = [each for each in list(made_loaders) if each.whowaits_place == place and place.where]
    others = [each for each in made if each.dataset is not loader.dataset]
    return any(is_iterable(torch, each) or find_handle(each.dataset) for each in others)


def find_handle(dataset: Any, depth: int = DEEPEST) -> str:
    """Return the attribute with an open file or GPU tensor, which workers cannot share; else ""."""
    for name, value in list(getattr(dataset, "__dict__", {}).items())[:MOST_LOOKED_AT]:
        many = value.values() if isinstance(value, dict) else value
        items = list(many)[:MOST_LOOKED_AT] if isinstance(value, (dict, list, tuple)) else [value]
        for item in items:
            if _cannot_be_shared(item):
                return name
            if depth > 1 and hasattr(item, "__dict__") and not isinstance(item, type):
                inside = find_handle(item, depth - 1)
                if inside:
                    return f"{name}.{inside}"
    return ""


def _cannot_be_shared(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not isinstance(value, (io.BytesIO, io.StringIO))
    kinds = {each.__module__.partition(".")[0] for each in type(value).__mro__}
    return bool(getattr(value, "is_cuda", False)) or not FILES.isdisjoint(kinds)
