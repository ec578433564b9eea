"""Every command and every piece of params.yaml in README.md and docs/ is accepted as it stands.

A block of commands is taken apart into its simple commands, and each is tried by the rule for its
program: ours and DVC's own parsers read it; of a flow, the parameters that it would have are
resolved; `make` says what it would do, bash whether it can be read. A command, a block or a
language that no rule covers fails. None runs here.
"""

import itertools
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.run.parameters import Changes
from flows.run.resolution import resolve, resolve_command
from tests.support.command_lines import NotAccepted, parse
from tests.support.docs_blocks import PAGES, Block, read_blocks
from tests.support.project import ROOT
from throughline.config.params_file import parse_yaml
from throughline.tuning.budgets import Budgets, read_budgets

# MLflow warns about itself when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
# Blocks that run as they stand, in test_docs_runs.py.
RUN = {("docs/daily.md", "sh"), ("docs/prediction.md", "sh"), ("docs/extending.md", "diff")}
# Commands that are not tried, by how they begin, and why.
NOT_TRIED = {
    "source .venv/bin/activate": "sets up a shell",
    "source .throughline/stack/environment": "sets up a shell; test_local_stack.py reads it",
    "apt-get install postgresql": "changes the machine",
    "docker compose": "needs Docker; tests/infra/test_infra.py reads infra/compose.yaml",
    "cp -r mlartifacts .throughline/ui": "copies the state of servers that have run",
    "python -m pytest": "runs tests",
    "python -m tasks.STAGE": "stands for any stage",
    "sqlite3": "copies the state of servers that have run",
    "tar -C .throughline": "copies a stack; tests/infra/test_local_stack.py does",
}
FLOWS = tuple(f"flows.{flow}" for flow in ("training", "comparison", "prepare_data", "tuning"))
SHELL = ("umask", "mkdir", "(umask")  # of which bash checks the syntax
LEFT_OUT = re.compile("required|Missing")  # what a sentence may leave out of a command


def commands_of(text: str) -> Iterator[str]:
    """The simple commands of a block, without comments; a group in parentheses is one."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("("):
            yield line
            continue
        tokens = shlex.shlex(line, posix=False, punctuation_chars="&;")
        tokens.whitespace_split = True
        for ends, words in itertools.groupby(tokens, key=lambda token: set(token) <= set("&;")):
            if not ends:
                yield " ".join(words)


BLOCKS = [block for block in read_blocks() if (block.page, block.language) not in RUN]
COMMAND = re.compile(r"`((?:python -m|dvc|make) [^`]+)`")
INLINE = {" ".join(one.split()) for page in PAGES for one in COMMAND.findall(page.read_text())}


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def test_every_block_is_of_a_language_that_a_test_reads_and_examples_in_python_are_python():
    assert {block.language for block in BLOCKS} == {"", "sh", "yaml", "python"}
    for block in of("python"):
        compile(block.text, str(block), "exec")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with params.yaml as it comes, what overlays there are, and those of the README."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    for name in ("presets", "demo"):
        shutil.copytree(ROOT / "infra" / name, tmp_path / "infra" / name)
    write_overlays(tmp_path, ROOT / "README.md")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.core
def test_every_piece_of_params_yaml_is_accepted(folder, monkeypatch):
    """In a project with the modules that pages show and the files of models that they name."""
    monkeypatch.syspath_prepend(folder)
    for block in of("python"):
        if name := re.match(r"# (my_\w+\.py)$", block.text, re.MULTILINE):
            (folder / name[1]).write_text(block.text)
    for block in of("yaml"):
        for name in re.findall(r"[\w.]+\.(?:keras|h5)\b", block.text):
            (folder / name).touch()
        resolve(folder, Changes(overlay=parse_yaml(block.text, str(block))))


@pytest.mark.integration
@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_every_command_of_a_block_is_accepted(block, folder):
    write_overlays(folder, ROOT / block.page)
    for command in commands_of(block.text):
        try_command(command)


@pytest.mark.integration
def test_every_command_in_a_sentence_is_accepted(folder):
    refused = {}
    for command in INLINE:
        try:
            try_command(command)
        except NotAccepted as error:
            if not LEFT_OUT.search(str(error)):
                refused[command] = str(error)
    assert INLINE and not refused


@pytest.mark.integration
def test_the_model_of_the_readme_gives_a_logit_per_class():
    (block,) = [block for block in of("python") if block.page == "README.md"]
    names: dict = {}
    exec(compile(block.text, str(block), "exec"), names)
    assert names["build"]((12, 10, 1), 4, width=8).output_shape == (None, 4)


def write_overlays(folder: Path, *pages: Path) -> None:
    """Write the pieces of params.yaml of pages into the files that their first lines name."""
    for block in read_blocks(*pages):
        if block.language == "yaml" and (name := re.match(r"# (\S+\.yaml)", block.text)):
            (folder / name[1]).write_text(block.text)


def try_command(command: str) -> None:
    """Fail unless the program of a command takes it as it is; a flow with the parameters of this
    folder. NotAccepted says why, where the program is ours or DVC.
    """
    words = [word for word in shlex.split(command) if word != "…"]
    if command.startswith(tuple(NOT_TRIED)):
        return
    if words[0] == "make":
        # Lines with $(MAKE) run even so, here by a shell that does nothing.
        run(["make", "--dry-run", "SHELL=/bin/true", *words[1:]])
    elif words[0] == "dvc" or words[:2] == ["python", "-m"]:
        options = parse(words)
        if words[2:3] and words[2] in FLOWS:
            asked = options.get("pipeline") or []
            pipelines = [asked] if isinstance(asked, str) else asked
            resolve_command(options["set"], options["overlay"], options["name"], pipelines)
            read_budgets(**{name: options.get(name) for name in Budgets.model_fields})
    else:
        assert command.startswith(SHELL), f"no rule says how to try {command}"
        run(["bash", "-n", "-c", command])


def run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
