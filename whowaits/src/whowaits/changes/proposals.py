"""Changes that may speed up any tf.data dataset, as rewrites of its graph: they can be tried while
the script stays unchanged.

A dataset serializes to a graph with a node per transformation. A change replaces or inserts a node:
parallel calls, several files at once, a prefetch at the end, a cache. A cache is tried with the
elements of `CACHED_STEPS` steps, repeated: it is as fast as a full one, and fills at once.

A change may have no effect on the training (`SAME`), change the order (`ORDER`), call Python code
from several threads (`THREADS`), or keep values that each epoch would make or draw anew
(`DRAWN_ONCE`). A cache never follows a transformation that combines examples anew in each epoch:
pairs of shuffled datasets, batches of shuffled examples, ops that draw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from whowaits.timing.machine import memory_left_bytes

from .advice import DRAWN_ONCE, ORDER, SAME, THREADS
from .graphs import (
    AUTOMATIC,
    AUTOTUNE,
    Functions,
    Graph,
    Node,
    add_constant,
    as_dataset,
    called_functions,
    end_at,
    insert,
    is_dataset,
    kind_of,
    last_node,
    leave_shuffles_out,
    may_draw,
    parallel_edits,
    plain_kind_of,
    read_constant,
    reading_edits,
    reshuffles,
    serialize,
    spec_of,
    title_of,
    without_version,
)
from .passes import digest_some
from .places import ONE_KIND, READERS, find_made, locate

CACHED_STEPS = 16
IDLE = ("Options", "Model", "Repeat", "AssertCardinality", "AssertNext", "Take", "Skip")
WORKING = ("Map", "Interleave", "Generator", "TFRecord", "TextLine", "FixedLengthRecord")
# A cache after these would freeze values that vary in each epoch, or never fill.
NOT_KEPT = ("Repeat", "Random", "Sample", "DirectedInterleave", "SampleFromDatasets")
# Transformations that depend on the order of elements: another order pairs or drops other examples.
BY_ORDER = ("Zip", "Window", "Take", "Skip", "Shard", "Scan")
# Transformations that, after a reshuffling, combine or drop other examples in each epoch.
COMPOSING = ("Batch", "GroupBy", *BY_ORDER)
# Transformations that change the number of elements.
COUNTING = ("Interleave", "FlatMap", "Batch", "Unbatch", "Window", "GroupBy")
# Functions of Keras: the script can change their call and result, but nothing inside them.
KERAS_FOLDERS = frozenset(f"{each}_dataset_from_directory" for each in ("image", "text", "audio"))
PROVEN_EXAMPLES, PROVEN_ELEMENTS = 256, 16
MORE_COPIES = 5  # copies of a graph: read, edited, serialized, with a prefetch, with a cache
PROVEN_S = 4.0  # time limit of a pass
EVERYTHING_PCT = 99.9


@dataclass(frozen=True)
class InputChange:
    """A change in words, and the dataset with it.

    `keeps` is the size of a cache in words ("" for no cache); `meaning` is the effect of the change
    on the training, `says` the same in words.
    """

    text: str
    dataset: Any
    keeps: str = ""
    meaning: str = SAME
    says: str = ""
    kept_bytes: float = 0.0
    kind: str = ""  #: kind of the changed transformation: map, batch, …
    number: int = 0  #: its number among those of this kind, from the dataset's end
    title: str = ""  #: as in the script: map(decode)
    inside: str = ""  #: the library function that makes it, if the script does not
    adds: str = ""  #: addition to the transformation's call: an argument, or calls after it
    ahead: str = ""  #: addition at the dataset's end


def propose_changes(
    dataset: tf.data.Dataset, *, batch: int, steps: int | None = None
) -> list[InputChange]:
    """Return the changes that a dataset leaves open, each by itself, with a prefetch at the end.

    `batch` is the number of examples per batch, `steps` the number of batches, if known.

    Raises:
      tf.errors.OpError, ValueError: the dataset cannot be serialized, such as one with more than 2
        GB of arrays.
      MemoryError: there is no memory for copies of its arrays.
    """
    graph = tf.compat.v1.GraphDef.FromString(
        dataset._as_serialized_graph(allow_stateful=True).numpy()
    )
    draft = _Draft(graph, dataset, steps)
    edits = [(node, *edit) for node in draft.chain for edit in draft.edits(node)]
    left = memory_left_bytes()
    if left is not None and (len(edits) + MORE_COPIES) * graph.ByteSize() > left:
        raise MemoryError(
            f"the dataset holds {graph.ByteSize() / 2**20:,.0f} MiB of arrays; there is no memory"
            f" for {len(edits) + MORE_COPIES} copies, one for each change and a few more"
        )
    changes = []
    if not draft.prefetches_last():
        changes.append(draft.change("", tf.compat.v1.GraphDef.FromString(serialize(graph))))
    for node, text, adds, edit in edits:
        edited = tf.compat.v1.GraphDef.FromString(serialize(graph))
        edit(edited, next(other for other in edited.node if other.name == node.name))
        meaning, says = draft.meaning(node)
        changes.append(
            draft.change(
                f"{draft.title(node)}: {text}",
                edited,
                meaning=meaning,
                says=says,
                adds=adds,
                **draft.position(node),
            )
        )
    return [*changes, *draft.cache(batch)]


class _Draft:
    """A dataset's graph; makes datasets with the same element spec from rewritten graphs."""

    def __init__(self, graph: Graph, dataset: tf.data.Dataset, steps: int | None) -> None:
        self._graph, self._dataset, self._steps = graph, dataset, steps
        self._spec = dataset.element_spec
        self._nodes = {node.name: node for node in graph.node}
        self._functions = Functions(graph)
        #: transformations, the last one first
        self.chain = list(self._upstream(self._nodes[last_node(graph)]))

    def edits(self, node: Node) -> Iterator[tuple[str, str, Callable[[Graph, Node], None]]]:
        """Return a node's parallel edits: none if cached, a generator, a library's or in order."""
        if self.generates(node) or self.is_cached(node) or self.position(node)["inside"]:
            return iter(())
        if not self.reads_files(node):
            # If the options leave the order open, a tried change must still keep it.
            is_open = self._dataset.options().deterministic is False
            return parallel_edits(node, self._cycle_length(node), asks_for_order=is_open)
        return iter(()) if self._goes_by_order(node) else reading_edits(self._reader(node))

    def _cycle_length(self, node: Node) -> int | None:
        """Return TensorFlow's cycle length for an interleave that was given none; else None."""
        if kind_of(node) != "Interleave":
            return None
        made = find_made(self._dataset, "interleave", self.position(node)["number"])
        if made is None or tf.get_static_value(made._cycle_length) != AUTOMATIC:
            return None
        return read_constant(self._nodes[node.input[-2]])

    def is_cached(self, node: Node) -> bool:
        """Return whether a cache holds a node's results from the second epoch on."""
        caches = [other for other in self.chain if kind_of(other) == "Cache" and other is not node]
        return any(node is other for cache in caches for other in self._upstream(cache))

    def prefetches_last(self) -> bool:
        """Return whether the dataset ends in a prefetch, or only idle transformations follow it."""
        passing = (kind_of(node) for node in self.chain)
        return next((kind for kind in passing if kind not in IDLE), "") == "Prefetch"

    def change(self, text: str, graph: Graph, **facts: Any) -> InputChange:
        """Return a rewritten graph as a change; add a prefetch at the end if there is none."""
        if not self.prefetches_last():
            insert(graph, last_node(graph), "PrefetchDataset", [add_constant(graph, -1)])
            facts["ahead"] = f".prefetch({AUTOTUNE})"
            text += f"{'; ' if text else ''}end with {facts['ahead']}"
        return InputChange(text=text, dataset=as_dataset(graph, self._spec), **facts)

    def meaning(self, node: Node) -> tuple[str, str]:
        """Return the effect of a parallel edit of a node on the training, also in words."""
        meaning, says = SAME, []
        if self.reads_files(node):
            meaning, says = ORDER, ["examples of several files are interleaved"]
        if self._draws(node):
            meaning, says = ORDER, [*says, "random draws fall on other examples"]
        if self.runs_python(node):
            threads = "its Python code is called from several threads at once"
            meaning, says = THREADS, [*says, f"{threads}; --patch tests whether that is harmless"]
        return meaning, "; ".join(says)

    def reads_files(self, node: Node) -> bool:
        """Return whether a node reads one file after the other, as a TFRecordDataset does."""
        ops = map(without_version, self._functions.ops_within(node))
        return kind_of(node) == "FlatMap" and not set(READERS).isdisjoint(ops)

    def _reader(self, node: Node) -> str:
        """Return the class of tf.data that made a node which reads files, or ""."""
        named = [name for name in called_functions(node) if "read_one_file" in name]
        ops = {op for name in named for op in self._functions.ops_of(name)}
        return next((each for each in READERS if each in ops), "")

    def _goes_by_order(self, node: Node) -> bool:
        """Return whether another order of a node's elements would lead to other examples.

        It would if later transformations take, skip or pair elements, or regroup their parts.
        """
        level = 0  # number of batches around an element
        for kind in reversed([kind_of(other) for other in self._below(node)]):
            level += ("Batch" in kind) - (kind in ("Unbatch", "FlatMap"))
            if level not in (0, 1) or any(word in kind for word in BY_ORDER):
                return True
        return False

    def runs_python(self, node: Node) -> bool:
        return any(op.endswith("PyFunc") for op in self._functions.ops_within(node))

    def title(self, node: Node) -> str:
        if self.generates(node):
            return "from_generator"
        return self._reader(node) or title_of(node)

    def _kind(self, node: Node) -> str:
        """Return a node's kind, as `places` names it: map (also parallel), its reader, …"""
        kind = plain_kind_of(node)
        return self._reader(node) or ONE_KIND.get(kind, kind)

    def position(self, node: Node) -> dict[str, Any]:
        """Return a transformation's kind, number, title and, if a library makes it, its maker."""
        kind, title = self._kind(node), self.title(node)
        alike = [other for other in self.chain if self._kind(other) == kind]
        number = next(number for number, other in enumerate(alike) if other is node)
        called = locate(self._dataset, kind, number).called
        inside = "" if called == title.partition("(")[0] else called
        return {"kind": kind, "number": number, "title": title, "inside": inside}

    def compare_passes(self, node: Node, batched: bool) -> tuple[float, float]:
        """Return how many of a second pass's first elements the first pass had [%], and mean bytes.

        Random draws make it less than 100 %. Shuffles before the node are left out.
        """
        graph = tf.compat.v1.GraphDef.FromString(serialize(self._graph))
        source = leave_shuffles_out(graph, node.name)
        count = PROVEN_ELEMENTS if batched else PROVEN_EXAMPLES
        elements = as_dataset(end_at(graph, source), spec_of(node)).take(count)
        first, mean_bytes = digest_some(elements, most_s=PROVEN_S)
        second, _ = digest_some(elements.take(len(first)), most_s=math.inf)
        both = Counter(first) & Counter(second)
        return 100 * sum(both.values()) / max(1, len(second)), mean_bytes

    def cache(self, batch: int) -> Iterator[InputChange]:
        """Yield a cache, if useful, after the last transformation with equal results each epoch."""
        for node in self.chain:
            above = list(self._upstream(node))
            kinds = [kind_of(other) for other in above]
            if any(kind in NOT_KEPT for kind in kinds) or any(map(self._draws, above)):
                continue
            if kind_of(node) in ("Prefetch", *IDLE) or self._composes(above):
                continue
            if any("Take" in kind_of(other) for other in self._below(node)):
                continue  # a cache that is not read to its end keeps nothing
            uncached = kinds[: kinds.index("Cache")] if "Cache" in kinds else kinds
            if not any(word in kind for kind in uncached for word in WORKING):
                return
            batched = not any("Batch" in kind_of(other) for other in self._below(node))
            if any(part.dtype == tf.variant for part in spec_of(node)):
                return  # sparse or ragged elements cannot be compared here
            per_step = 1 if batched else batch
            order = self._order(node, per_step)
            if order is not None and not (order and self._goes_by_order(node)):
                yield self._cache_after(node, above, order, batch=per_step)
            return

    def _composes(self, above: list[Node]) -> bool:
        """Return whether any of these nodes combines, or leaves out, reshuffled examples."""
        return any(
            any(word in kind_of(node) for word in COMPOSING)
            and any(map(reshuffles, self._upstream(node)))
            for node in above
        )

    def _cache_after(self, node: Node, above: list[Node], order: str, *, batch: int) -> InputChange:
        graph = tf.compat.v1.GraphDef.FromString(serialize(self._graph))
        take = insert(graph, node.name, "TakeDataset", [add_constant(graph, CACHED_STEPS * batch)])
        cache = insert(graph, take, "CacheDataset", [add_constant(graph, "")])
        insert(graph, cache, "RepeatDataset", [add_constant(graph, -1)])
        share, each_bytes = self.compare_passes(node, batched=batch == 1)
        keeps, kept_bytes = _say_size(each_bytes, self._count(node, batch))
        meaning, says = (
            (ORDER, "examples are shuffled after they are made") if order else (SAME, "")
        )
        if any("ReadVariableOp" in self._functions.ops_within(other) for other in above):
            meaning, says = (
                DRAWN_ONCE,
                "it reads a variable, which the training may change; a cache would read it once",
            )
        elif any(map(self.runs_python, above)) or share < EVERYTHING_PCT:
            meaning, says = (
                DRAWN_ONCE,
                f"elements that each epoch makes anew would be made once: {share:.3g} % of an"
                " epoch's elements had been in the one before; with a cache, all are",
            )
        position = self.position(node)
        inside, adds = position["inside"], f".cache(){order}"
        text = f"{self.title(node)}: {adds} after it"
        if inside in KERAS_FOLDERS:
            ahead = f".prefetch({AUTOTUNE})" if self.prefetches_last() else ""
            call, again = ("", "") if batch == 1 else ("(batch_size=None)", f".batch({batch})")
            text, adds = f"{inside}{call}: {adds}{again}{ahead} after it", ""
            position["inside"] = ""  # the script can write it
        elif inside:
            cannot = f"nothing can be added inside {inside}"
            says = f"{says}; {cannot}" if says else cannot
        change = self.change(
            text,
            graph,
            keeps=keeps,
            kept_bytes=kept_bytes,
            meaning=meaning,
            says=says,
            adds=adds,
            **position,
        )
        return replace(
            change, dataset=self._end(change.dataset), ahead=change.ahead if adds else ""
        )

    def _end(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """End a repeated dataset after an epoch of the original, so that epochs' ends take time."""
        count = int(self._dataset.cardinality())  # below 0 if endless or unknown
        return dataset.take(count) if count > 0 else dataset

    def _order(self, node: Node, per_step: int) -> str | None:
        """Return the shuffle that must follow a cache, or ""; None if its size is unknown."""
        above = list(self._upstream(node))
        at = [number for number, other in enumerate(above) if reshuffles(other)]
        if not at:
            return ""
        if any(word in kind_of(other) for other in above[: at[-1]] for word in COUNTING):
            count = self._count(node, per_step)
            return f".shuffle({count})" if count else None
        return f".shuffle({self._largest_buffer([above[number] for number in at])})"

    def _largest_buffer(self, shuffles: list[Node]) -> str:
        sizes = [read_constant(self._nodes[each.input[1]]) for each in shuffles]
        known = [size for size in sizes if size is not None]
        return str(max(known)) if len(known) == len(sizes) else "…"

    def generates(self, node: Node) -> bool:
        """Return whether a node is a Python generator, which tf.data wraps into a flat_map."""
        return "GeneratorDataset" in self._functions.ops_within(node)

    def _upstream(self, node: Node) -> Iterator[Node]:
        if is_dataset(node):
            yield node
        for name in node.input:
            source = self._nodes[name.lstrip("^").partition(":")[0]]
            if is_dataset(source):
                yield from self._upstream(source)

    def _below(self, node: Node) -> Iterator[Node]:
        return (
            other
            for other in self.chain
            if other is not node and any(each is node for each in self._upstream(other))
        )

    def _draws(self, node: Node) -> bool:
        return any(map(may_draw, self._functions.ops_within(node)))

    def _count(self, node: Node, per_step: int) -> int | None:
        """Return a node's number of elements, else `per_step` times the steps; None if unknown."""
        graph = tf.compat.v1.GraphDef.FromString(serialize(self._graph))
        count = int(as_dataset(end_at(graph, node.name), spec_of(node)).cardinality())
        if count < 0:
            return self._steps * per_step if self._steps else None
        return count


def _say_size(each_bytes: float, count: int | None) -> tuple[str, float]:
    """Return the size of `count` elements, in words and in bytes (infinite if unknown)."""
    if count is None:
        return f"{each_bytes / 2**20:,.2f} MiB for each of an unknown number of elements", math.inf
    return f"{count * each_bytes / 2**20:,.0f} MiB", count * each_bytes
