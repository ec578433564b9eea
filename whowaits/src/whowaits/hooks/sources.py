"""The source of a `fit`'s batches: a tf.data dataset, which can be changed, or something else."""

import inspect
import math
import sys
from typing import Any

from whowaits.changes.places import kind_of_dataset, upstream
from whowaits.timing.batches import count_examples

ARRAYS = (
    "`fit` was given arrays, from which it copies each batch; what helps: less to copy, such as"
    " uint8 that the model casts, or a dataset, tf.data.Dataset.from_tensor_slices("
    "(x, y)).shuffle(len(x)).batch(n).prefetch(tf.data.AUTOTUNE)"
)
BATCH_SIZE = 32  # the default of a `fit` on arrays
GENERATOR = (
    "`fit` was given a generator, which makes batches in one thread; what helps: a"
    " keras.utils.PyDataset with several workers, or a tf.data dataset with a parallel map"
)


def tried_dataset(model: Any, arguments: dict[str, Any]) -> Any:
    """Return the input of `fit` if it is a tf.data dataset that `fit` uses unchanged, else None."""
    x = arguments.get("x")
    return x if is_dataset(x) and not explain_untried(model, arguments) else None


def explain_untried(model: Any, arguments: dict[str, Any]) -> str:
    """Say why no change of the input is tried, and what helps; "" if one is, or if unknown."""
    x = arguments.get("x")
    if is_dataset(x):
        if arguments.get("class_weight"):
            return "no change is tried with class_weight, for which `fit` makes another dataset"
        strategy = type(strategy_of(model)).__name__
        if "Default" not in strategy:
            return (
                f"no change is tried under {strategy}, which trains on another dataset than the one"
                " that it is given"
            )
        return ""
    if _makes_batches(x):
        workers = arguments.get("workers", getattr(x, "workers", 1))  # tf_keras: of `fit`
        return (
            f"`fit` was given a {type(x).__name__} with workers={workers}; what helps: more"
            " workers, and use_multiprocessing=True where its Python code computes"
        )
    workers = getattr(x, "num_workers", None)
    if workers is not None and any(
        kind.__module__.startswith("torch.") for kind in type(x).__mro__
    ):
        return explain_loader(x)
    if inspect.isgenerator(x):
        return GENERATOR
    return ARRAYS if _holds_arrays(x) else ""


def count_steps(arguments: dict[str, Any]) -> float:
    """Return the number of steps of a `fit` on arrays; infinite if unknown or for other inputs."""
    x = arguments.get("x")
    examples = count_examples(x) if _holds_arrays(x) and not _makes_batches(x) else None
    if examples is None:
        return math.inf
    each = arguments.get("steps_per_epoch")
    each = each or math.ceil(examples / (arguments.get("batch_size") or BATCH_SIZE))
    return each * (arguments.get("epochs", 1) - arguments.get("initial_epoch", 0))


def _makes_batches(x: Any) -> bool:
    """Return whether `x` is a Keras PyDataset, or a Sequence, its former name."""
    return not {"PyDataset", "Sequence"}.isdisjoint(each.__name__ for each in type(x).__mro__)


def _holds_arrays(x: Any) -> bool:
    return hasattr(x, "shape") or isinstance(x, (list, tuple, dict))


def explain_loader(loader: Any) -> str:
    """Say what makes a PyTorch DataLoader faster; `loader` may also be one of its iterators."""

    def part(name: str) -> Any:
        return getattr(loader, name, getattr(loader, f"_{name}", None))

    workers, dataset = part("num_workers") or 0, part("dataset")
    kinds = {each.__name__ for each in type(dataset).__mro__}
    if "TensorDataset" in kinds:
        helps = (
            "whole batches at once: sampler=BatchSampler(RandomSampler(dataset), n, False) with"
            " batch_size=None; workers would only copy"
        )
    elif "IterableDataset" in kinds:
        helps = "more workers" if workers else "num_workers=2 or more"
        helps += ", if the dataset gives each of them its own part by get_worker_info()"
    elif workers:
        helps = "more workers, where there are cores for them"
    else:
        helps = "num_workers=2 or more, which make batches while the model trains"
    if workers and not part("persistent_workers"):
        helps += "; persistent_workers=True where the gap between epochs is long"
    return f"no change is tried of a DataLoader(num_workers={workers}); what helps: {helps}"


def is_dataset(x: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(x, tf.data.Dataset)


def has_cache(x: Any) -> bool:
    return is_dataset(x) and any(kind_of_dataset(each) == "cache" for each in upstream(x))


def strategy_of(model: Any) -> Any:
    tf = sys.modules["tensorflow"]
    return getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
