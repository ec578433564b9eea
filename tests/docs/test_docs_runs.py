"""The examples of pages that say what comes out run as they stand: one after another, each page in
a project after its first `dvc repro`; those of docs/extending.md in a copy of this project.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pytest

from flows.servers.services import reserved_port
from tests.support.docs_blocks import Block, read_blocks
from tests.support.project import (
    ROOT,
    TOGETHER,
    environment,
    run,
    run_quietly,
    share_servers,
    write_params,
)
from tests.support.skips import need
from throughline.config.params_file import read_yaml

pytestmark = pytest.mark.slow

MEASURED = {"identities", "race", "report"}  # what may be out of date where results came from


def read_examples(page: str, language: str) -> list[str]:
    return [it.text for it in read_blocks(ROOT / "docs" / page) if it.language == language]


def run_script(folder: Path, script: str) -> str:
    """What a script of bash prints in a project."""
    variables = environment(folder) | share_servers([script])
    command = ["bash", "-euc", script]
    done = subprocess.run(command, cwd=folder, env=variables, check=False, **TOGETHER)
    assert done.returncode == 0, f"{script}\n{done.stdout}"
    return done.stdout


def test_the_daily_commands_do_what_their_page_says(first):
    folder, _ = first
    params = read_yaml(folder / "params.yaml")
    del params["pipelines"]["naive"]  # one configuration shows all that the page says
    write_params(folder, params)
    run(folder, "dvc", "repro")
    run_quietly(folder.parent, "git", "init", "--quiet", "--bare", "-b", "main", "origin.git")
    run_quietly(folder, "git", "remote", "add", "origin", str(folder.parent / "origin.git"))
    printed = {}
    for text in read_examples("daily.md", "sh"):
        if "metrics diff" in text:  # another file of the same data, at which ingest has to look
            with np.load(folder / "source" / "data.npz") as arrays:
                np.savez_compressed(folder / "source" / "data.npz", **arrays)
        script = text.replace("/srv/throughline", str(folder.parent / "store"))
        printed[text.split("\n")[0].split("  ")[0]] = run_script(folder, script)
    assert find_stages(printed["dvc exp apply short"]) <= MEASURED
    assert "source/data.npz" in printed["dvc status"]
    assert find_stages(printed["dvc status"]) == {"ingest"}
    other = folder.parent / "other"
    assert "epochs: 1" in (other / "params.yaml").read_text()
    assert (other / "runs" / "optimized" / "model.keras").is_file()
    assert (other / "data" / "snapshot" / "train" / "image.bin").is_file()
    assert {*json.loads(run_quietly(other, "dvc", "status", "--json"))} <= MEASURED
    assert "short" not in run_quietly(folder, "git", "worktree", "list")
    assert "up to date" in run_quietly(folder, "dvc", "status")


def find_stages(printed: str) -> set[str]:
    return {*re.findall(r"Running stage '(.*)'", printed)}


def test_all_ways_to_predict_give_the_same_class(first):
    need("curl")
    folder, _ = first
    record = json.loads((folder / "runs" / "optimized" / "run.json").read_text())
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    made = mlflow.register_model(f"runs:/{record['mlflow_run_id']}/model", "throughline-data")
    mlflow.MlflowClient().set_registered_model_alias("throughline-data", "champion", made.version)
    with reserved_port() as port:
        script = "".join(read_examples("prediction.md", "sh")).replace("5001", str(port))
        said = run_script(folder, script)
    rows = list(csv.DictReader((folder / "predictions.csv").open()))
    assert [row["input"] for row in rows] == ["examples/0.png", "examples/1.png"]
    for way in ("keras", "serve", "champion"):
        assert f"{way}: {rows[0]['class']}\n" in said


def test_the_training_guide_gives_the_same_batches_from_memory_and_from_disk(finished, monkeypatch):
    monkeypatch.chdir(finished[0])
    names: dict = {}
    for number, block in enumerate(read_examples("training.md", "python"), start=1):
        exec(compile(block, f"docs/training.md, example {number}", "exec"), names)
    assert np.isfinite(float(names["loss"]))
    alone, whole = names["resident"], names["mapped"]
    assert names["next_step"] == 2 * whole.steps_per_epoch
    for one, other in zip(alone.batches(epochs=1), whole.dataset(), strict=True):
        np.testing.assert_array_equal(one[0], other[0])


FILES = ("house/test_extension_points", "diagnosis/test_rules", "plan/test_examples")
FILES += ("kernels/test_ops", "plan/test_plan")
WORDS = "extension or examples.py or posterize or deep or every_field or calls"
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
    for number, name in enumerate(("cat", "dog")):
        images = np.random.default_rng(number).integers(0, 256, (40, 6, 5), np.uint8)
        np.save(tmp_path / f"{name}.npy", images)
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
        path = tmp_path / "wav" / ("high" if number % 2 else "low") / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = np.random.default_rng(number).integers(-32768, 32768, 150 + number, np.int16)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        written[example_key(f"{path.parent.name}/{path.name}")] = samples[:100].tolist()
    (tmp_path / "wav" / "low" / "broken.wav").write_bytes(b"RIFF")
    folder = prepared(data_settings(tmp_path / "wav", "sound_folder"), tmp_path)
    assert list(read_manifest(folder / "manifest").rejected["id"]) == ["low/broken.wav"]
    stored = {"arrays": prepare_snapshot(folder, folder / "snapshot", "arrays")}
    same = {"augment": (Beginning(),), "postprocess": (), "in_order": True, "with_keys": True}
    pipes = {read: pipeline(stored, read=read, **same) for read in ("shards", "snapshot", "files")}
    digest_of_all(pipes)
    for batch in batches(pipes["files"]):
        for key, sound in zip(batch["key"].tolist(), batch["sound"], strict=True):
            assert sound[:, 0].tolist() == written[key]
"""


def apply(root: Path, block: Block) -> None:
    """Put a block into the tree: a new file, the end of a file, or lines between others."""
    if block.language == "python":
        head, code = block.text.split("\n", 1)
        path = root / head.removeprefix("# ")
        path.write_text(f"{path.read_text()}\n\n{code}" if path.exists() else code)
        return
    for change in re.split(r"^--- ", block.text, flags=re.MULTILINE)[1:]:
        name, hunks = change.split("\n", 1)
        text = (root / name).read_text()
        for hunk in hunks.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if not line.startswith("+"))
            assert text.count(before) == 1, f"{name} has not these lines once:\n{before}"
            text = text.replace(before, "".join(line[1:] for line in lines))
        (root / name).write_text(text)


def test_every_example_is_used_by_a_test_of_a_copy_with_all_of_them(tmp_path):
    root = tmp_path / "extended"
    for name in ("throughline", "tasks", "flows", "benchmarks", "tests", "infra", "docs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "params.yaml"):
        shutil.copy(ROOT / name, root / name)
    encodings = root / "throughline" / "data" / "encodings"
    shutil.copy(ROOT / "docs" / "examples" / "sounds.py", encodings)
    for block in read_blocks(ROOT / "docs" / "extending.md"):
        apply(root, block)
    (root / "tests" / "plan" / "test_examples.py").write_text(MORE)

    def python(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], cwd=root, check=False, **TOGETHER)
        assert done.returncode == 0, done.stdout
        return done.stdout

    python("-m", "ruff", "check", "throughline", "tests")
    python("infra/reference.py")
    files = [f"tests/{file}.py" for file in FILES]
    passed = python("-m", "pytest", "-rp", *files, "-k", WORDS)
    assert not [use for use in USES if use not in passed], passed
    assert "| `posterize` |" in (root / "docs" / "configurations.md").read_text()
    assert "| `deep_prefetch` |" in (root / "docs" / "measuring.md").read_text()
