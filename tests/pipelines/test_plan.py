"""Plans are right by construction: printable, pure, and quick to make for any configuration."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasks.data.records import RecordSchema
from tasks.errors import ImpossiblePlan
from tasks.pipelines.ops import Decode, Flip, Rescale, Resize
from tasks.pipelines.plan import Batch, Keep, Mix, make_plan, output_shape, without_shuffle
from tasks.settings import PipelineConfig

JPEG = RecordSchema(payload="encoded", shape=None, channels=3)
RAW = RecordSchema(payload="raw", shape=(28, 28, 1), channels=1)
OPS = {"preprocess": (Decode(), Resize(height=8, width=8)), "augment": (Flip(),), "finish": (Rescale(),), "batch_size": 32}


def plan_of(schema=JPEG, preprocess=None, **config):
    return make_plan(PipelineConfig(**config), schema=schema, **{**OPS, **({"preprocess": preprocess} if preprocess else {})})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"shuffle": {"kind": "none"}}, "read:shards → map:parse+decode+resize+flip+rescale → batch[32]"),
        ({"read": "files"}, "read:files → shuffle[4096] → map:load+decode+resize+flip+rescale → batch[32]"),
        (
            {"cache": {"after": "resize"}, "prefetch": 2},
            "read:shards → map:parse+decode+resize → cache:memory → shuffle[4096] → map:flip+rescale → batch[32] → prefetch[2]",
        ),
        ({"vectorize": True}, "read:shards → shuffle[4096] → map:parse+decode+resize → batch[32] → map:flip+rescale"),
        (
            {"read": "snapshot", "shuffle": {"kind": "global"}, "finish": "device", "prefetch": "auto"},
            "gather:snapshot[global shuffle,32] → map:flip → prefetch[auto] ⇒ device:rescale",
        ),
        (
            {"interleave": {"cycle_length": 3, "parallel": "cores"}, "shuffle": {"kind": "none"}},
            "read:shards[3×16,cores] → map:parse+decode+resize+flip+rescale → batch[32]",
        ),
    ],
)
def test_plans_print_what_they_do_in_order(config, expected):
    assert str(plan_of(**config)) == expected


def test_raw_pixels_are_parsed_and_decoded_in_whole_batches():
    plan = plan_of(schema=RAW, preprocess=(Decode(),), vectorize=True)
    assert str(plan) == "read:shards → shuffle[4096] → batch[32] → map:parse+decode+flip+rescale"


def test_nothing_random_is_ever_cached_and_shuffling_comes_behind_the_cache():
    for after in ("decode", "resize"):
        steps = plan_of(cache={"after": after}).steps
        place = {type(step): index for index, step in enumerate(steps)}
        assert place[Keep] < place[Mix] < place[Batch]
        assert not any(op.random for step in steps[: place[Keep]] for op in getattr(step, "ops", ()))


def test_refusals_carry_their_reason():
    with pytest.raises(ImpossiblePlan, match="every epoch would repeat the first one's draws"):
        plan_of(cache={"after": "flip"})
    with pytest.raises(ImpossiblePlan, match="images differ in size"):
        output_shape((Decode(),), JPEG)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("read", "files"), ("interleave", {"cycle_length": 2}), ("map", {"parallel": 3}), ("vectorize", True), ("cache", {"after": "resize"}),
        ("shuffle", {"kind": "none"}), ("prefetch", 4), ("deterministic", False), ("finish", "device"), ("rewrites", True),
    ],
)  # fmt: skip
def test_every_field_changes_the_plan(field, value):
    assert plan_of(**{field: value}) != plan_of()
    assert field in PipelineConfig.model_fields


def test_every_field_is_in_the_test_above():
    tested = {case[0] for case in test_every_field_changes_the_plan.pytestmark[0].args[1]}
    assert tested == set(PipelineConfig.model_fields)


def test_evaluation_keeps_storage_order():
    assert "shuffle" not in str(make_plan(without_shuffle(PipelineConfig()), schema=JPEG, **OPS))


def test_planning_needs_no_tensorflow():
    code = "import sys, tasks.pipelines.plan, tasks.params; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
