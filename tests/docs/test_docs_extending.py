"""The examples of docs/extending.md, put into a copy of the project, do there what they say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

PAGE = ROOT / "docs" / "extending.md"
FILES = (
    "tests/house/test_extension_points.py",
    "tests/diagnosis/test_rules.py",
    "tests/plan/test_examples.py",
    "tests/kernels/test_ops.py",
    "tests/plan/test_plan.py",
)
WORDS = (
    "extension", "examples.py", "posterize", "deep", "every_field", "calls",
)  # fmt: skip
# Tests of the copy in which the examples are used: a part of their ids.
USES = (
    "test_every_source_has_its_file_its_scanner_and_its_facts",
    "test_npy_files_become_classes",
    "test_sounds_are_the_same_from_shards_as_from_the_snapshot",
    "test_every_op_has_a_kernel[posterize]",
    "test_a_batch_and_its_examples_come_out_alike_eagerly_and_in_a_data_set[Posterize(bits=3)]",
    "test_every_preset_is_described",
    "test_every_step_has_a_text_a_key_and_a_builder[ReadAhead]",
    "test_every_field_changes_the_plan",
    "test_a_rule_holds_from_its_limit_on[deep_prefetch]",
    "-8 calls share 2 threads]",
)
# The examples of what is no table of tests already.
MORE = """
import wave

import numpy as np

from tests.support.small_data import data_settings, prepared
from tests.support.small_pipelines import batches, digest_of_all, pipeline, prepare_snapshot
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.records import example_key
from throughline.plan.ops import Op


def test_npy_files_become_classes(tmp_path):
    for name in ("cat", "dog"):
        images = np.random.default_rng(len(name)).integers(0, 256, (40, 6, 5), np.uint8)
        np.save(tmp_path / f"{name}.npy", images + np.uint8(name == "dog"))
    manifest = ingest(data_settings(tmp_path, "npy_classes"), tmp_path / "manifest")
    assert manifest.classes == ("cat", "dog")
    assert manifest.schema.input.shape == (6, 5, 1)
    assert len(manifest.examples) == 80


class Beginning(Op):
    name = "beginning"
    takes = "example"
    works_on = ("sounds",)

    def shape(self, before):
        return (100, 1)

    def compute(self, element, draw):
        return {**element, "sound": element["sound"][:100]}


def test_sounds_are_the_same_from_shards_as_from_the_snapshot(tmp_path):
    written = {}
    for number in range(40):
        samples = np.random.default_rng(number).integers(-32768, 32768, 150 + number, np.int16)
        path = tmp_path / "wav" / ("high" if number % 2 else "low") / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(samples.tobytes())
        written[example_key(f"{path.parent.name}/{path.name}")] = samples
    (tmp_path / "wav" / "low" / "broken.wav").write_bytes(b"RIFF")
    folder = prepared(data_settings(tmp_path / "wav", "sound_folder"), tmp_path)
    assert list(read_manifest(folder / "manifest").rejected["id"]) == ["low/broken.wav"]
    stored = {"arrays": prepare_snapshot(folder, folder / "snapshot", "arrays")}
    same = {"augment": (Beginning(),), "postprocess": (), "in_order": True, "with_keys": True}
    pipes = {read: pipeline(stored, read=read, **same) for read in ("shards", "snapshot", "files")}
    digest_of_all(pipes)
    for pipe in pipes.values():
        for batch in batches(pipe):
            for key, sound in zip(batch["key"].tolist(), batch["sound"], strict=True):
                assert sound[:, 0].tolist() == written[key][:100].tolist()
"""


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of the code blocks."""
    return re.findall(r"```(python|diff)\n(.*?)```", text, re.DOTALL)


def apply(root: Path, language: str, block: str) -> None:
    """Put a block into the tree: a new file, the end of a file, or lines between others."""
    if language == "python":
        head, code = block.split("\n", 1)
        path = root / head.removeprefix("# ")
        path.write_text(f"{path.read_text()}\n\n{code}" if path.exists() else code)
        return
    for change in re.split(r"^--- ", block, flags=re.MULTILINE)[1:]:
        name, hunks = change.split("\n", 1)
        text = (root / name).read_text()
        for hunk in hunks.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if not line.startswith("+"))
            assert text.count(before) == 1, f"{name} has not these lines once:\n{before}"
            text = text.replace(before, "".join(line[1:] for line in lines))
        (root / name).write_text(text)


def extend(root: Path) -> Path:
    """Make a copy of the project with all examples in it."""
    for name in ("throughline", "tasks", "flows", "benchmarks", "tests", "infra", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "params.yaml"):
        shutil.copy(ROOT / name, root / name)
    encodings = root / "throughline" / "data" / "encodings"
    shutil.copy(PAGE.parent / "examples" / "sounds.py", encodings)
    for language, block in blocks(PAGE.read_text()):
        apply(root, language, block)
    return root


def python(root: Path, *arguments: str) -> str:
    """Run Python in the copy."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_example_is_used_by_a_test_of_the_copy(tmp_path):
    root = extend(tmp_path / "extended")
    (root / "tests" / "plan" / "test_examples.py").write_text(MORE)
    python(root, "-m", "ruff", "check", "throughline", "tests")
    python(root, "infra/reference.py")
    passed = python(root, "-m", "pytest", "-rp", *FILES, "-k", " or ".join(WORDS))
    assert not [use for use in USES if use not in passed], passed
    assert "| `posterize` |" in (root / "docs" / "configurations.md").read_text()
    assert "| `deep_prefetch` |" in (root / "docs" / "measuring.md").read_text()
