"""The key of a search: two searches with the same key ask the same question.

The key covers the prepared data, all parameters except `pipelines.tuned`, the budgets except the
time, the machine, the program, its libraries and the user's own files. Imports no TensorFlow.
"""

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from throughline.config.params import Params
from throughline.data.shards.index import read_shard_index
from throughline.measurement.gpus import cuda_uuids
from throughline.measurement.hardware import read_cpu_name
from throughline.results.tuning import TUNED
from throughline.settings import PipelineConfig
from throughline.shared.code_identity import code_digest
from throughline.shared.files import digest_file, digest_json
from throughline.shared.layout import Layout
from throughline.shared.libraries import installed_versions, stage_libraries
from throughline.shared.limits import usable_cores
from throughline.shared.program import ROOTS, SUPPORTING
from throughline.tuning.budgets import AUTO, Budgets, as_numbers

FOLDER = Path(".throughline") / "tuning"


def without_tuned(params: Params) -> Params:
    """Remove the configuration that an earlier search added; if none is left, add a plain one."""
    others = {name: config for name, config in params.pipelines.items() if name != TUNED}
    return replace(params, pipelines=others or {"naive": PipelineConfig()})


def as_written(params: Params, document: Mapping[str, Any]) -> Params:
    """Set `snapshot.fraction` to `auto` if the document does: its value may depend on `tuned`."""
    if document.get("snapshot", {}).get("fraction", AUTO) != AUTO:
        return params
    return replace(params, snapshot=params.snapshot.model_copy(update={"fraction": AUTO}))


def digest_question(
    params: Params,
    layout: Layout,
    budgets: Budgets,
    *,
    own_files: Sequence[str],
    needs: Mapping[str, Any] | None = None,
) -> str:
    """Return the key of a question, by which its answer is found again.

    `own_files` are the user's models and ops, tokenizers and weights, relative to the layout's
    root; `needs` are the digests of files and versions of libraries that these need.

    Raises:
      MissingInput: If the data is not prepared.
    """
    index = read_shard_index(layout.shards)
    values = {field.name: repr(getattr(params, field.name)) for field in dataclasses.fields(params)}
    programs = ("tasks.tune", "throughline.race.training", "throughline.tuning.survey")
    program = code_digest(*programs, roots=ROOTS, without=SUPPORTING)
    cpus, memory = (read_cpu_name(), usable_cores()), psutil.virtual_memory().total
    machine = [platform.node(), *cpus, memory, *sorted(cuda_uuids() or ())]
    own = {file: digest_file(layout.root / file) for file in own_files}
    of_ops = [name for op in params.preprocess for name in op.libraries]
    libraries = installed_versions(stage_libraries("train", of_ops))
    epochs = params.train.epochs if budgets.epochs == AUTO else budgets.epochs
    spent = {**as_numbers(budgets), "epochs": epochs}
    about = [index.digest, values, spent, machine, program, libraries, own, dict(needs or {})]
    return digest_json(about)[:16]
