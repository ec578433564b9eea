"""The question that a search answers: its key, the survey of its data, and the proof of the answer.

Two searches with the same key ask the same question. Survey and proof run in processes of their
own. Imports no TensorFlow.
"""

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from throughline.config.params import Params
from throughline.data.shards.index import read_shard_index
from throughline.measurement.gpus import cuda_uuids
from throughline.measurement.hardware import read_cpu_name
from throughline.race.contestant import ContestantLost, do_once
from throughline.race.jobs import Entry
from throughline.results.tuning import TUNED
from throughline.settings import PipelineConfig
from throughline.shared.code_identity import code_digest
from throughline.shared.errors import UnequalConfigurations, Untunable
from throughline.shared.files import digest_file, digest_json
from throughline.shared.layout import Layout
from throughline.shared.libraries import installed_versions, stage_libraries
from throughline.shared.limits import usable_cores
from throughline.shared.program import ROOTS, SUPPORTING
from throughline.shared.progress import echo
from throughline.tuning.budgets import AUTO, Budgets, Limits, Need, as_numbers
from throughline.tuning.journal import Journal
from throughline.tuning.space import Space

FOLDER = Path(".throughline") / "tuning"
FEWEST_STEPS = 20  # per epoch
PROGRAMS = ("tasks.tune", "throughline.race.training", "throughline.tuning.survey")
SURVEY, PROOF = "throughline.tuning.survey:survey", "throughline.tuning.survey:prove_equal"
PROOF_S = 24 * 3600.0  # reads every example twice


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The candidates, their needs and the model alone's, by name, and the size of the data.

    Trainings need `besides_steps_bytes` of memory beyond their contestants' steps. A contestant's
    memory or cache holds the share `sampled_share` of the examples of all splits.
    """

    space: Space
    needs: Mapping[str, Need]
    besides_steps_bytes: int
    sampled_share: float
    examples: int
    steps_per_epoch: int


@dataclass(frozen=True, kw_only=True)
class Question:
    """The parameters, project and budgets of a search; `shared` is as in `Conditions`."""

    params: Params
    root: Path
    budgets: Budgets
    limits: Limits
    shared: bool = False

    @property
    def epochs(self) -> int:
        return find_epochs(self.params, self.budgets)


def find_epochs(params: Params, budgets: Budgets) -> int:
    given = budgets.epochs
    return given if isinstance(given, int) else params.train.epochs


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
    """Return the key of a question, under which its answer is kept.

    The key covers the prepared data, all parameters except `pipelines.tuned`, the budgets except
    the time, the machine, the program, its libraries and the user's own files. `own_files` (models,
    ops, tokenizers, weights) are relative to the layout's root; `needs` are the digests of files
    and versions of libraries that they need. Raises MissingInput if the data is not prepared.
    """
    index = read_shard_index(layout.shards)
    values = {field.name: repr(getattr(params, field.name)) for field in dataclasses.fields(params)}
    program = code_digest(*PROGRAMS, roots=ROOTS, without=SUPPORTING)
    cpus, memory = (read_cpu_name(), usable_cores()), psutil.virtual_memory().total
    machine = [platform.node(), *cpus, memory, *sorted(cuda_uuids() or ())]
    own = {file: digest_file(layout.root / file) for file in own_files}
    of_ops = [name for op in params.preprocess for name in op.libraries]
    libraries = installed_versions(stage_libraries("train", of_ops))
    spent = {**as_numbers(budgets), "epochs": find_epochs(params, budgets)}
    about = [index.digest, values, spent, machine, program, libraries, own, dict(needs or {})]
    return digest_json(about)[:16]


def survey_data(question: Question, folder: Path) -> Survey:
    """Find the candidates and their needs, in a process whose log is in `folder`.

    Raises Untunable if the data cannot be read or trained on, or its epochs are too short.
    """
    echo("surveying the data: possible candidates, and their needs of memory and disk")
    params, root, allow = question.params, question.root, question.budgets.allow
    log = folder / "survey.log"
    try:
        surveyed: Survey = do_once(
            SURVEY, params, root, allow, question.limits, question.shared, log=log
        )
    except ContestantLost as lost:
        raise Untunable(
            f"the prepared data could not be read, or trained on for a few steps: {lost}"
        ) from lost
    if (steps := surveyed.steps_per_epoch) < FEWEST_STEPS:
        raise Untunable(
            f"an epoch has {steps} step{'s' * (steps != 1)}, but at least {FEWEST_STEPS} are"
            " needed to measure their speed; use more data, or a smaller batch_size"
        )
    return surveyed


def prove(entry: Entry, journal: Journal) -> bool:
    """Prove that a candidate's examples are the snapshot's, and return whether that succeeds.

    A candidate with other examples is out for good; after another failure, such as too little
    memory, the next search tries it again.
    """
    if entry.name in journal.content.proven:
        return True
    echo(f"proving that {entry.name} delivers the snapshot's examples")
    try:
        digest = do_once(PROOF, entry, log=journal.folder / "prove.log", timeout_s=PROOF_S)
    except ContestantLost as lost:
        if lost.failure and lost.failure.kind == UnequalConfigurations.__name__:
            journal.refute(entry.name, f"not proven: {lost}")
        else:
            journal.drop(entry.name, f"not proven: {lost}", transient=lost.transient)
        return False
    journal.note_proof(entry.name, digest)
    return True
