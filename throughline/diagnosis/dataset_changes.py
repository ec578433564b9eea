"""What may be changed about anybody's tf.data dataset, as rewrites of its graph, so that a change
can be tried where the dataset is at hand and the script that makes it stays as it is.

A dataset serializes to a graph of one node per transformation. A change replaces a node or inserts
one: calls in parallel, several files at once, a prefetch at the end, a cache. A cache is tried on
`CACHED_STEPS` steps' worth of elements, which are then repeated: it delivers them as fast as one
that holds everything, and is filled in no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_experimental_dataset_ops

AUTOTUNE = "tf.data.AUTOTUNE"
CACHED_STEPS = 16
IDLE = ("Options", "Model", "Repeat", "AssertCardinality", "AssertNext", "Take", "Skip")
WORKING = ("Map", "Interleave", "Generator", "TFRecord", "TextLine", "FixedLengthRecord")
# A cache would keep what these are to deliver otherwise in each epoch, or deliver without end.
NOT_KEPT = ("Repeat", "Random", "Sample", "DirectedInterleave")
_TRACED_FUNCTION = re.compile(r"__inference_Dataset_(?:flat_)?(?:map|interleave)_(\w+?)_\d+$")
_VERSION = re.compile(r"(V\d+)?$")

# Messages of node_def.proto and graph.proto, whose classes have no types.
Node = Any
Graph = Any


@dataclass(frozen=True, kw_only=True)
class InputChange:
    """A change in words, and the dataset with it; `keeps`: what a cache would hold, "" where there
    is none.
    """

    text: str
    dataset: tf.data.Dataset
    keeps: str = ""


def propose_changes(dataset: tf.data.Dataset, *, batch: int) -> list[InputChange]:
    """The changes that this dataset leaves open, each by itself; a prefetch at the end comes with
    every one. `batch` is the examples in a batch.

    Raises:
      tf.errors.OpError, ValueError: the dataset cannot be serialized, such as one that holds more
        than 2 GB of arrays.
    """
    graph = tf.compat.v1.GraphDef.FromString(
        dataset._as_serialized_graph(allow_stateful=True).numpy()
    )
    draft = _Draft(graph, dataset.element_spec)
    ahead = "" if draft.prefetches_last() else f"; end with .prefetch({AUTOTUNE})"
    changes = []
    if ahead:
        changes.append(
            draft.change(ahead.removeprefix("; "), tf.compat.v1.GraphDef.FromString(_bytes(graph)))
        )
    for node in draft.chain:
        if draft.generates(node):
            continue
        for text, edit in _edits(node):
            edited = tf.compat.v1.GraphDef.FromString(_bytes(graph))
            edit(edited, next(other for other in edited.node if other.name == node.name))
            changes.append(draft.change(f"{_title(node)}: {text}{ahead}", edited))
    return [*changes, *draft.cache(batch, ahead)]


class _Draft:
    """A dataset's graph, and how a rewritten one becomes a dataset of the same elements."""

    def __init__(self, graph: Graph, element_spec: object) -> None:
        self._graph, self._spec = graph, element_spec
        self._nodes = {node.name: node for node in graph.node}
        self._functions = {item.signature.name: item for item in graph.library.function}
        #: transformations, the consumer's first
        self.chain = list(self._upstream(self._nodes[_result(graph)]))

    def prefetches_last(self) -> bool:
        """Whether batches are made ahead of the step: nothing that works comes after a prefetch."""
        passing = (_kind(node) for node in self.chain)
        return next((kind for kind in passing if kind not in IDLE), "") == "Prefetch"

    def change(self, text: str, graph: Graph, keeps: str = "") -> InputChange:
        """A rewritten graph, with a prefetch at its end where there was none."""
        if not self.prefetches_last():
            _insert(graph, _result(graph), "PrefetchDataset", [_constant(graph, -1)])
        return InputChange(text=text, dataset=_as_dataset(graph, self._spec), keeps=keeps)

    def cache(self, batch: int, ahead: str) -> Iterator[InputChange]:
        """A cache after the last transformation of which all epochs get the same, if anything works
        before it that is not cached yet.
        """
        for node in self.chain:
            above = list(self._upstream(node))
            kinds = [_kind(other) for other in above]
            if any(kind in NOT_KEPT for kind in kinds) or any(map(self._draws, above)):
                continue
            if _kind(node) in ("Prefetch", *IDLE):
                continue
            uncached = kinds[: kinds.index("Cache")] if "Cache" in kinds else kinds
            if not any(word in kind for kind in uncached for word in WORKING):
                return
            batched = not any("Batch" in _kind(other) for other in self._below(node))
            graph = tf.compat.v1.GraphDef.FromString(_bytes(self._graph))
            count = CACHED_STEPS * (1 if batched else batch)
            take = _insert(graph, node.name, "TakeDataset", [_constant(graph, count)])
            cache = _insert(graph, take, "CacheDataset", [_constant(graph, "")])
            _insert(graph, cache, "RepeatDataset", [_constant(graph, -1)])
            order = "" if not any("Shuffle" in kind for kind in kinds) else ".shuffle(…)"
            title = "from_generator" if self.generates(node) else _title(node)
            text = f"{title}: .cache(){order} after it{ahead}"
            same = ""
            if any(op.endswith("PyFunc") for other in above for op in self._ops(other)):
                same = ", if what Python makes is the same in every epoch"
            yield self.change(text, graph, f"{self._size(node)}{same}")
            return

    def generates(self, node: Node) -> bool:
        """Whether it is a generator of Python's, which tf.data wraps into a flat_map."""
        return "GeneratorDataset" in self._ops(node)

    def _upstream(self, node: Node) -> Iterator[Node]:
        """A node and those that it takes its elements from."""
        if _is_dataset(node):
            yield node
        for name in node.input:
            source = self._nodes[name.lstrip("^").partition(":")[0]]
            if _is_dataset(source):
                yield from self._upstream(source)

    def _below(self, node: Node) -> Iterator[Node]:
        """Those that take their elements from a node."""
        return (
            other
            for other in self.chain
            if other is not node and any(each is node for each in self._upstream(other))
        )

    def _draws(self, node: Node) -> bool:
        """Whether a node's functions, or those they call, draw at random."""
        return any("Random" in op or "Multinomial" in op for op in self._ops(node))

    def _ops(self, node: Node) -> set[str]:
        """All ops of a node's functions and of those they call."""
        pending = self._known(_called(node))
        seen: set[str] = set()
        found: set[str] = set()
        while pending:
            name = pending.pop()
            seen.add(name)
            for inner in self._functions[name].node_def:
                found.add(inner.op)
                pending |= self._known({inner.op, *_called(inner)}) - seen
        return found

    def _known(self, names: set[str]) -> set[str]:
        """Those that are functions of this graph."""
        return names & self._functions.keys()

    def _size(self, node: Node) -> str:
        """Of all elements that a node delivers, in words."""
        graph = tf.compat.v1.GraphDef.FromString(_bytes(self._graph))
        next(other for other in graph.node if other.op == "_Retval").input[0] = node.name
        shapes, dtypes = (node.attr[key].list for key in ("output_shapes", "output_types"))
        spec = tuple(
            tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype))
            for shape, dtype in zip(shapes.shape, dtypes.type, strict=True)
        )
        elements = _as_dataset(graph, spec)
        mib = sum(_bytes_of(part) for part in tf.nest.flatten(next(iter(elements)))) / 2**20
        count = int(elements.cardinality())
        if count < 0:
            return f"{mib:,.2f} MiB per element, whose number is not known"
        return f"{count * mib:,.0f} MiB"


def _edits(node: Node) -> Iterator[tuple[str, Callable[[Graph, Node], None]]]:
    """What may be done in parallel about a node."""
    kind = _kind(node)
    if node.op == "MapDataset":
        yield f"num_parallel_calls={AUTOTUNE}", _parallel_map
    elif node.op == "BatchDatasetV2":
        yield f"num_parallel_calls={AUTOTUNE}", _parallel_batch
    elif kind in ("Interleave", "FlatMap"):
        yield f"interleave(…, num_parallel_calls={AUTOTUNE})", _parallel_interleave


def _parallel_map(graph: Graph, node: Node) -> None:
    _become(node, "ParallelMapDatasetV2")
    node.input.append(_constant(graph, -1))


def _parallel_batch(graph: Graph, node: Node) -> None:
    source, size, drop = node.input
    _become(node, "ParallelBatchDataset")
    node.input[:] = [source, size, _constant(graph, -1), drop]


def _parallel_interleave(graph: Graph, node: Node) -> None:
    flat = node.op == "FlatMapDataset"
    inputs = list(node.input) if flat else list(node.input)[:-2]
    sizes = [_constant(graph, -1), _constant(graph, 1)] if flat else list(node.input)[-2:]
    automatic = [_constant(graph, -1) for _ in range(3)]
    _become(node, "ParallelInterleaveDatasetV4")
    node.input[:] = [*inputs, *sizes, *automatic]


def _become(node: Node, op: str) -> None:
    """Make a node another op, without attributes that this one has not."""
    node.op = op
    definition: Any = op_def_registry.get(op)
    known = {attribute.name for attribute in definition.attr}
    for name in [name for name in node.attr if name not in known]:
        del node.attr[name]
    node.attr["deterministic"].s = b"true"


def _insert(graph: Graph, after: str, op: str, inputs: list[str]) -> str:
    """Put a transformation between a node and those that read it; returns its name."""
    source = next(node for node in graph.node if node.name == after)
    if source.op == "_Retval":
        raise ValueError(after)
    name = f"changed/{len(graph.node)}"
    for node in graph.node:
        for number, other in enumerate(node.input):
            if other == after:
                node.input[number] = name
    added = graph.node.add(name=name, op=op, input=[after, *inputs])
    for key in ("output_types", "output_shapes"):
        if key in source.attr:
            added.attr[key].CopyFrom(source.attr[key])
        else:
            added.attr[key].CopyFrom(source.attr["T" + key])
    return name


def _constant(graph: Graph, value: int | str) -> str:
    name = f"changed/{len(graph.node)}"
    proto = tf.make_tensor_proto(value, tf.string if isinstance(value, str) else tf.int64)
    added = graph.node.add(name=name, op="Const")
    added.attr["value"].tensor.CopyFrom(proto)
    added.attr["dtype"].type = proto.dtype
    return name


def _as_dataset(graph: Graph, spec: object) -> tf.data.Dataset:
    variant = gen_experimental_dataset_ops.dataset_from_graph(_bytes(graph))
    return dataset_ops.from_variant(variant, spec)


def _bytes(graph: Graph) -> bytes:
    return graph.SerializeToString()


def _bytes_of(part: tf.Tensor) -> int:
    if part.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(part)))
    return int(tf.size(part)) * part.dtype.size


def _called(node: Node) -> set[str]:
    """Names of the functions that a node is given."""
    return {value.func.name for value in node.attr.values() if value.HasField("func")}


def _result(graph: Graph) -> str:
    """Name of the last transformation."""
    return next(node for node in graph.node if node.op == "_Retval").input[0]


def _is_dataset(node: Node) -> bool:
    return "Dataset" in node.op and node.op != "DatasetFromGraph"


def _kind(node: Node) -> str:
    """Map, Batch, Prefetch, …: an op's name without "Dataset" and version."""
    return _VERSION.sub("", node.op).replace("Dataset", "").removesuffix("V")


def _title(node: Node) -> str:
    """A transformation as its user calls it, with the function that it was given."""
    name = _TRACED_FUNCTION.match(node.attr["f"].func.name) if "f" in node.attr else None
    kind = {"ParallelMap": "Map", "ParallelBatch": "Batch", "ParallelInterleave": "Interleave"}
    called = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.get(_kind(node), _kind(node))).lower()
    called = called.replace("t_f_record", "TFRecordDataset")
    return f"{called}({name[1]})" if name and name[1] != "lambda" else called
