"""Reads and edits a dataset's serialized graph, which has a node per transformation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_experimental_dataset_ops

AUTOTUNE = "tf.data.AUTOTUNE"
AUTOMATIC = -1  # the value of AUTOTUNE in a graph
# Files read together, and elements in a block: fixed, for the same order on every machine.
AT_ONCE, IN_BLOCKS_OF = 4, 16
_VERSION = re.compile(r"(V\d+)?$")
_TRACED_FUNCTION = re.compile(r"__inference_Dataset_(?:flat_)?(?:map|interleave)_(\w+?)_\d+$")
# Parts of names of stateful ops that draw nothing; functions that they call are checked, too.
HARMLESS = (
    "Assert", "Case", "Hash", "If", "Lookup", "Mutable", "PartitionedCall", "Placeholder", "Print",
    "ReadVariable", "StatefulPartitionedCall", "VarHandle", "While", "PyFunc", "EagerPyFunc",
)  # fmt: skip
_DRAWING = re.compile(
    "Random|Multinomial|Normal|Sampler|SampleDistorted|Gamma|Poisson|Bernoulli|Binomial|Dropout"
)

# Messages of node_def.proto and graph.proto, which have no Python types.
Node = Any
Graph = Any


def change_op(node: Node, op: str) -> None:
    """Turn a node into another op, set to be deterministic; drop attributes that `op` lacks."""
    node.op = op
    definition: Any = op_def_registry.get(op)
    known = {attribute.name for attribute in definition.attr}
    for name in [name for name in node.attr if name not in known]:
        del node.attr[name]
    node.attr["deterministic"].s = b"true"


def insert(graph: Graph, after: str, op: str, inputs: list[str]) -> str:
    """Insert a transformation between a node and its consumers; return its name."""
    source = next(node for node in graph.node if node.name == after)
    name = f"changed/{len(graph.node)}"
    for node in graph.node:
        for number, other in enumerate(node.input):
            if other == after:
                node.input[number] = name
    added = graph.node.add(name=name, op=op, input=[after, *inputs])
    for key in ("output_types", "output_shapes"):
        added.attr[key].CopyFrom(source.attr[key if key in source.attr else "T" + key])
    return name


def add_constant(graph: Graph, value: int | str) -> str:
    """Add a constant to a graph; return its name."""
    name = f"changed/{len(graph.node)}"
    proto = tf.make_tensor_proto(value, tf.string if isinstance(value, str) else tf.int64)
    added = graph.node.add(name=name, op="Const")
    added.attr["value"].tensor.CopyFrom(proto)
    added.attr["dtype"].type = proto.dtype
    return name


def read_constant(node: Node) -> int | None:
    value = node.attr["value"]
    return int(tf.make_ndarray(value.tensor)) if value.HasField("tensor") else None


def as_dataset(graph: Graph, spec: object) -> tf.data.Dataset:
    """Make a dataset from a graph; `spec` describes its elements."""
    variant = gen_experimental_dataset_ops.dataset_from_graph(serialize(graph))
    return dataset_ops.from_variant(variant, spec)


def serialize(graph: Graph) -> bytes:
    return graph.SerializeToString()


class Functions:
    """The functions of a graph, which its nodes refer to by name."""

    def __init__(self, graph: Graph) -> None:
        self._bodies = {item.signature.name: item.node_def for item in graph.library.function}

    def ops_of(self, name: str) -> set[str]:
        """Return the ops in a function's own body, without versions."""
        return {without_version(inner.op) for inner in self._bodies.get(name, ())}

    def ops_within(self, node: Node) -> set[str]:
        pending = called_functions(node) & self._bodies.keys()
        seen: set[str] = set()
        ops: set[str] = set()
        while pending:
            name = pending.pop()
            seen.add(name)
            for inner in self._bodies[name]:
                ops.add(inner.op)
                pending |= ({inner.op, *called_functions(inner)} & self._bodies.keys()) - seen
        return ops - self._bodies.keys()


def called_functions(node: Node) -> set[str]:
    return {value.func.name for value in node.attr.values() if value.HasField("func")}


def last_node(graph: Graph) -> str:
    return next(node for node in graph.node if node.op == "_Retval").input[0]


def is_dataset(node: Node) -> bool:
    return "Dataset" in node.op and node.op != "DatasetFromGraph"


def kind_of(node: Node) -> str:
    """Return an op's kind without "Dataset" and version, such as Map, Batch or Prefetch."""
    return without_version(node.op).replace("Dataset", "").removesuffix("V")


def without_version(op: str) -> str:
    """Return an op's name without its version: MapDataset for MapDatasetV2."""
    return _VERSION.sub("", op)


def end_at(graph: Graph, name: str) -> Graph:
    """Make another node the result of a graph."""
    next(other for other in graph.node if other.op == "_Retval").input[0] = name
    return graph


def reshuffles(node: Node) -> bool:
    """Return whether a node shuffles in another order each epoch."""
    again = node.attr.get("reshuffle_each_iteration")
    return "Shuffle" in kind_of(node) and (again is None or again.b)


def leave_shuffles_out(graph: Graph, last: str) -> str:
    """Remove shuffles from a graph; return `last`, or the node before it if it is a shuffle."""
    shuffles = {node.name: node.input[0] for node in graph.node if "Shuffle" in node.op}

    def source(name: str) -> str:
        while name in shuffles:
            name = shuffles[name]
        return name

    for node in graph.node:
        for number, name in enumerate(node.input):
            node.input[number] = source(name)
    return source(last)


def spec_of(node: Node) -> Any:
    types = "output_types" if "output_types" in node.attr else "Toutput_types"
    shapes, dtypes = (node.attr[key].list for key in ("output_shapes", types))
    return tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype))
        for shape, dtype in zip(shapes.shape, dtypes.type)
    )


def title_of(node: Node) -> str:
    """Return a transformation's name, and its function's name unless a lambda: map(decode)."""
    name = _TRACED_FUNCTION.match(node.attr["f"].func.name) if "f" in node.attr else None
    called = plain_kind_of(node)
    return f"{called}({name[1]})" if name and name[1] != "lambda" else called


def plain_kind_of(node: Node) -> str:
    """Return a node's kind as the method's name, such as map, also for a parallel op."""
    kind = {"ParallelMap": "Map", "ParallelBatch": "Batch", "ParallelInterleave": "Interleave"}
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.get(kind_of(node), kind_of(node))).lower()


def parallel_edits(
    node: Node, cycle_length: int | None, *, asks_for_order: bool
) -> Iterator[tuple[str, str, Callable[[Graph, Node], None]]]:
    """Yield ways to run a node in parallel: in words, as an addition to its call, as a graph edit.

    `cycle_length` is what TensorFlow chose for an interleave without one. `asks_for_order` says
    that order must be asked for, by deterministic=True.
    """
    calls = f"num_parallel_calls={AUTOTUNE}"
    if asks_for_order:
        calls += ", deterministic=True"
    if node.op == "MapDataset":
        yield calls, calls, _parallel_map
    elif node.op == "BatchDatasetV2":
        yield calls, calls, _parallel_batch
    elif kind_of(node) == "Interleave":
        if cycle_length is not None:
            # A parallel interleave would choose another number, and thus another order.
            calls = f"cycle_length={cycle_length}, {calls}"
        yield f"interleave(…, {calls})", calls, _interleave


def reading_edits(reader: str) -> Iterator[tuple[str, str, Callable[[Graph, Node], None]]]:
    """Yield ways to read several files at once in a node, in the form of `parallel_edits`.

    `reader` is the class of tf.data that reads, or "" for the script's own flat_map.
    """
    if reader:
        reads = f"num_parallel_reads={AUTOTUNE}"
        # One element of each in turn, as num_parallel_reads does.
        yield reads, reads, partial(_interleave, sizes=(AUTOMATIC, 1))
    else:
        given = (
            f"cycle_length={AT_ONCE}, block_length={IN_BLOCKS_OF}, num_parallel_calls={AUTOTUNE},"
            " deterministic=True"
        )
        edit = partial(_interleave, sizes=(AT_ONCE, IN_BLOCKS_OF))
        yield f"interleave(…, {given})", f"interleave({given})", edit


def _parallel_map(graph: Graph, node: Node) -> None:
    change_op(node, "ParallelMapDatasetV2")
    node.input.append(add_constant(graph, AUTOMATIC))


def _parallel_batch(graph: Graph, node: Node) -> None:
    change_op(node, "ParallelBatchDataset")
    node.input.insert(2, add_constant(graph, AUTOMATIC))  # before drop_remainder


def _interleave(graph: Graph, node: Node, sizes: tuple[int, ...] = ()) -> None:
    """Interleave in parallel; `sizes` are cycle and block length, unless the node has them."""
    inputs = [add_constant(graph, each) for each in (*sizes, AUTOMATIC, AUTOMATIC, AUTOMATIC)]
    change_op(node, "ParallelInterleaveDatasetV4")
    node.input.extend(inputs)


def may_draw(op: str) -> bool:
    """Return whether an op may draw random numbers or have another hidden state."""
    if _DRAWING.search(op):
        return True
    definition: Any = op_def_registry.get(op)
    stateful = definition is not None and definition.is_stateful
    return stateful and "Dataset" not in op and not any(name in op for name in HARMLESS)
