"""The configurations that a search considers: families and their forms. Pure; no TensorFlow.

Families differ in the values they keep and in the place for them, and by 2 to 100 times in speed.
The forms of a family do the same work with different calls, and differ by less. The plan refuses
impossible combinations; its reason is kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from throughline.plan.plan import InputSpec, Plan, make_plan
from throughline.settings import PipelineConfig
from throughline.shared.errors import ImpossiblePlan

CEILING = "model alone"
OWN, RULES = "own", "rules of thumb"  # families of given configurations, which are not searched
# Configurations that people choose without measuring: all cores everywhere, or AUTOTUNE everywhere.
HEURISTIC: Mapping[str, Any] = {
    "read": "shards",
    "interleave": {"cycle_length": 4, "parallel": "cores"},
    "map": {"parallel": "cores"},
    "prefetch": 2,
}
AUTOTUNE: Mapping[str, Any] = {
    "read": "shards",
    "interleave": {"cycle_length": 4, "parallel": "auto"},
    "map": {"parallel": "auto"},
    "prefetch": "auto",
    "graph_rewrites": True,
}
GLOBAL = {"shuffle": {"kind": "global"}}
PREFETCH = 2


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    family: str
    config: PipelineConfig
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Space:
    """The candidates (given ones, then families, presumably fastest forms first).

    `refusals` are the names of other configurations and families, and why they are refused.
    """

    candidates: tuple[Candidate, ...]
    refusals: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Properties of data, machine and options that decide which families are possible."""

    approximate: bool = False
    unordered: bool = False
    beyond_memory: bool = False  # the snapshot's training split exceeds the allowed memory
    accelerator: bool = False  # there is a GPU, whose memory may hold a split
    stored: float = 1.0  # fraction of the snapshot's rows
    fitting: float = 1.0  # the largest stored fraction that fits into the allowed disk and memory
    shared: bool = False  # several processes share each batch, or batches are cut to a multiple


def lay_out_space(
    own: Mapping[str, PipelineConfig], spec: InputSpec, conditions: Conditions
) -> Space:
    """Lay out own configurations, rules of thumb, then all forms of all families with new plans."""
    base = next(iter(own.values()))
    candidates, refusals = list[Candidate](), list[tuple[str, str]]()
    for group, family, configs in _groups(own, spec, conditions):
        planned, reasons = list[Candidate](), list[str]()
        for name, config in configs.items():
            try:
                plan = _plan(config, base, spec, conditions)
            except ImpossiblePlan as error:
                reasons.append(str(error))
            else:
                planned.append(Candidate(name=name, family=family, config=config, plan=plan))
        if not planned:
            refusals.append((group, reasons[0]))
        for each in planned:
            is_new = all(each.plan != other.plan for other in candidates)
            if is_new or family in (OWN, RULES):
                candidates.append(each)
    return Space(candidates=tuple(candidates), refusals=tuple(refusals))


def _groups(
    own: Mapping[str, PipelineConfig], spec: InputSpec, conditions: Conditions
) -> Iterator[tuple[str, str, dict[str, PipelineConfig]]]:
    """Yield (title, family, forms by name): given configurations one by one, then families."""
    same = _delivered(own)
    for name, config in own.items():
        yield name, OWN, {name: config}
    for name, rule in (("heuristic", HEURISTIC), ("autotune", AUTOTUNE)):
        if name not in own:
            yield name, RULES, {name: PipelineConfig(**{**rule, **same})}
    for family, values in _families(spec, conditions):
        part = values.get("snapshot", {}).get("fraction", 1)
        stem = family if part == 1 else f"{family} {part:.0%}"
        yield (
            family,
            family,
            {
                f"{stem}{suffix}": PipelineConfig(**{**values, **form, **same})
                for suffix, form in _forms(values, conditions)
            },
        )


def group_families(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    grouped: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        grouped.setdefault(candidate.family, []).append(candidate)
    return grouped


def read_stored(own: Mapping[str, PipelineConfig], fraction: float = 1.0) -> PipelineConfig:
    """Return a reader of `fraction` of the snapshot, with sampling and batch of the first `own`."""
    part = {"snapshot": {"fraction": fraction}}
    return PipelineConfig(**{"read": "snapshot", **part, **GLOBAL, **_delivered(own)})


def _delivered(own: Mapping[str, PipelineConfig]) -> dict[str, Any]:
    base = next(iter(own.values()))
    return {"sampling": base.sampling, "batch": base.batch}


def _plan(
    config: PipelineConfig, base: PipelineConfig, spec: InputSpec, conditions: Conditions
) -> Plan:
    """Plan a configuration; raise ImpossiblePlan if it is not allowed, or batches unlike `base`."""
    if (config.sampling, config.batch) != (base.sampling, base.batch):
        raise ImpossiblePlan("its sampling or batch differs from the first configuration's")
    if config.decode.approximate and not conditions.approximate:
        raise ImpossiblePlan("its pixels are approximate; --allow approximate lets it race")
    if not config.deterministic and not conditions.unordered:
        raise ImpossiblePlan("its order depends on timing; --allow unordered lets it race")
    if config.read == "snapshot" and config.snapshot.fraction > conditions.stored:
        raise ImpossiblePlan(
            f"only {conditions.stored:.0%} of the snapshot's rows are stored;"
            " `snapshot: {fraction: 1}` in params.yaml stores all"
        )
    plan = make_plan(config, spec)
    if conditions.shared and not plan.seekable:
        raise ImpossiblePlan(
            "it is a stream, whose batches cannot be shared as train.processes or"
            " train.batch_multiple require"
        )
    return plan


def _families(spec: InputSpec, conditions: Conditions) -> Iterator[tuple[str, dict[str, Any]]]:
    stored, streamed = {"read": "snapshot", **GLOBAL}, {"read": "shards"}
    yield "snapshot", stored
    if conditions.beyond_memory:
        yield "snapshot_window", {"read": "snapshot", "shuffle": {"kind": "window"}}
    if conditions.accelerator:
        yield "snapshot_on_device", {**stored, "snapshot_on": "device"}
    if 0 < conditions.fitting < 1:
        yield "snapshot_part", {**stored, "snapshot": {"fraction": conditions.fitting}}
    *earlier, last = [op.name for op in spec.preprocess]
    for where in ("memory", "disk"):
        yield f"cache_{where}", {**streamed, "cache": {"where": where, "after": last}}
    yield "arrays", {"read": "arrays"}
    yield "indexed_shards", {"read": "indexed_shards", **GLOBAL}
    yield "stream", streamed
    for where, after in product(("memory", "disk"), earlier):
        cache = {"where": where, "after": after}
        yield f"cache_{where}_after_{after}", {**streamed, "cache": cache}
    if conditions.approximate:
        yield "stream_half_size", {**streamed, "decode": {"ratio": 2}}
        yield "stream_fused_crop", {**streamed, "decode": {"crop": "fused"}}


def _forms(
    values: Mapping[str, Any], conditions: Conditions
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a family's forms as (name suffix, fields), the presumably fastest one first.

    A family says where examples are read and cached; a form says how their ops run.
    """
    streams = values["read"] in ("shards", "arrays")
    for vectorize, parallel, where, deterministic in product(
        (False,) if values["read"] == "snapshot" else (True, False),
        ("cores", "auto", "none"),
        ("device", "host"),
        (True, False) if conditions.unordered and streams else (True,),
    ):
        suffix = " vectorized" * vectorize + f" {parallel}" * (parallel != "none")
        form = {
            "vectorize": vectorize,
            "map": {"parallel": parallel},
            "postprocess_on": where,
            "deterministic": deterministic,
            "prefetch": "none" if values.get("snapshot_on") == "device" else PREFETCH,
        }
        yield f"{suffix} {where}{' unordered' * (not deterministic)}", form


def pick_forms(forms: Sequence[Candidate], count: int) -> list[str]:
    """Pick up to `count` forms by name: the first, then always the one most unlike those picked."""
    left, picked = list(forms), list[Candidate]()

    def differs_by(form: Candidate) -> int:
        return min((_differ(form, one) for one in picked), default=0)

    while left and len(picked) < count:
        picked.append(max(left, key=differs_by))
        left.remove(picked[-1])
    return [form.name for form in picked]


def find_leanest(forms: Sequence[Candidate]) -> list[Candidate]:
    """Return the forms that hold least memory: sequential calls, postprocessing on the device."""
    weights = [
        (form.config.map.parallel != "none", form.config.postprocess_on == "host") for form in forms
    ]
    return [form for form, weight in zip(forms, weights, strict=True) if weight == min(weights)]


def find_neighbors(form: Candidate, forms: Sequence[Candidate]) -> list[Candidate]:
    """Return the forms that differ from `form` in one respect."""
    return [one for one in forms if _differ(form, one) == 1]


def _differ(one: Candidate, other: Candidate) -> int:
    fields = ("vectorize", "map", "postprocess_on", "deterministic")
    return sum(getattr(one.config, each) != getattr(other.config, each) for each in fields)
