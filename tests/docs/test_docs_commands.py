"""Every command and every piece of params.yaml in README.md and docs/ is accepted as it stands.

A block of commands is taken apart into its simple commands, and each is tried by the rule for its
program: it runs in a copy of a finished project where that is cheap; a flow is asked with `--show`
for the parameters that it would have; of other programs the options are looked up in their
`--help`. A command, a block or a language that no rule covers fails.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from docs_blocks import PAGES, Block, read_blocks
from project import ROOT, environment
from shared_servers import shared_libraries

from flows.run.parameters import Changes
from flows.run.resolution import resolve
from throughline.config.params_file import parse_yaml

# Pages whose blocks of a language are run one after another by a test of their own.
OWN_TESTS = {
    ("docs/daily.md", "sh"): "tests/docs/test_docs_daily.py",
    ("docs/data.md", "yaml"): "tests/docs/test_docs_data.py",
    ("docs/extending.md", "diff"): "tests/docs/test_docs_extending.py",
    ("docs/extending.md", "python"): "tests/docs/test_docs_extending.py",
    ("docs/models.md", "python"): "tests/docs/test_docs_models.py",
    ("docs/models.md", "yaml"): "tests/docs/test_docs_models.py",
    ("docs/prediction.md", "sh"): "tests/docs/test_docs_prediction.py",
    ("docs/training.md", "python"): "tests/docs/test_docs_training.py",
}
# Commands that are not tried, by how they begin, and why.
NOT_TRIED = {
    "source .venv/bin/activate": "sets up a shell",
    "source .throughline/stack/environment": "sets up a shell; test_local_stack.py reads it",
    "apt-get install postgresql": "changes the machine",
    "dvc push -r stack": "needs the stack; tests/infra/test_local_stack.py pushes to it",
    "docker compose": "needs Docker; tests/infra/test_infra.py reads infra/compose.yaml",
    "cp -r mlartifacts .throughline/ui": "copies the state of servers that have run",
    "python -m pytest": "runs tests",
    "python -m tasks.STAGE": "stands for any stage",
    "sqlite3": "copies the state of servers that have run",
    "tar -C .throughline": "copies a stack; tests/infra/test_local_stack.py does",
}
# Commands that run as they stand, by how they begin; the others are looked up.
RUN = (
    "dvc metrics show",
    "dvc exp show",
    "dvc push",
    "dvc remote add --default store",
    "dvc repro",
    "python -m tasks.profiling --pipeline optimized --fail-if",
    "python -m tasks.verify",
)
REPLACED = {"/some/where": "../store"}
FLOWS = tuple(
    f"python -m flows.{flow}" for flow in ("training", "comparison", "prepare_data", "tuning")
)
SHELL = ("umask", "mkdir", "(umask")  # of which bash checks the syntax


def commands_of(text: str) -> list[str]:
    """The simple commands of a block, in their order, without comments; a group in parentheses is
    one.
    """
    commands: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("("):
            commands.append(line)
            continue
        tokens = shlex.shlex(line, posix=False, punctuation_chars="&;")
        tokens.whitespace_split = True
        words: list[str] = []
        for token in [*tokens, ";"]:
            if set(token) <= set("&;"):
                commands += [" ".join(words)] * bool(words)
                words = []
            else:
                words.append(token)
    return commands


BLOCKS = read_blocks()
SCRIPTS = [
    block for block in BLOCKS if block.language == "sh" and (block.page, "sh") not in OWN_TESTS
]
INLINE = sorted(
    {
        found[1]
        for page in PAGES
        for found in re.finditer(r"`((?:python -m|dvc|make) [^`]+)`", page.read_text())
    }
)


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def test_every_block_is_of_a_language_that_a_test_runs():
    for block in BLOCKS:
        own = OWN_TESTS.get((block.page, block.language))
        assert block.language in ("", "sh", "yaml", "python") or own, f"{block} {block.language}"
        assert own is None or (ROOT / own).is_file()


@pytest.mark.parametrize(
    "block", [block for block in of("yaml") if (block.page, "yaml") not in OWN_TESTS], ids=str
)
def test_every_piece_of_params_yaml_is_accepted(block):
    overlay = parse_yaml(block.text, str(block))
    assert isinstance(overlay, dict)
    resolve(ROOT, Changes(overlay=overlay))


@pytest.mark.slow
@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_every_command_of_a_block_is_accepted(block, request):
    commands, folder = commands_of(block.text), ROOT
    if any(command.startswith((*RUN, *FLOWS)) for command in commands):
        folder, _ = request.getfixturevalue("first")
        write_overlays(folder, ROOT / "README.md", ROOT / block.page)
    for command in commands:
        for what, instead in REPLACED.items():
            command = command.replace(what, instead)
        if command.startswith(tuple(NOT_TRIED)):
            continue
        if command.startswith(RUN):
            done = run_in(folder, command)
            stalls = "ThresholdExceeded" in done.stderr  # what `--fail-if` is for
            assert done.returncode == 0 or stalls, f"{command}\n{done.stdout}{done.stderr}"
        else:
            look_up(command, folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", INLINE)
def test_every_command_in_a_sentence_is_accepted(command, request):
    folder = ROOT
    if command.startswith(FLOWS):
        folder, _ = request.getfixturevalue("first")
        write_overlays(folder, ROOT / "README.md")
    if not command.startswith(tuple(NOT_TRIED)):
        look_up(command, folder)


@pytest.mark.integration
def test_the_model_of_the_readme_gives_a_logit_per_class():
    (block,) = [block for block in of("python") if block.page == "README.md"]
    names: dict = {}
    exec(compile(block.text, str(block), "exec"), names)
    assert names["build"]((12, 10, 1), 4, width=8).output_shape == (None, 4)


def test_the_other_examples_in_python_are_python():
    pages = {block.page for block in of("python")}
    for block in of("python"):
        compile(block.text, str(block), "exec")
    assert pages <= {"README.md", "docs/text.md"} | {page for page, _ in OWN_TESTS}


def write_overlays(folder: Path, *pages: Path) -> None:
    """Write the pieces of params.yaml of pages into the files that their first lines name, next to
    the presets.
    """
    shutil.copytree(ROOT / "infra" / "presets", folder / "infra" / "presets", dirs_exist_ok=True)
    for block in read_blocks(*pages):
        if block.language == "yaml" and (name := re.match(r"# (\S+\.yaml)", block.text)):
            (folder / name[1]).write_text(block.text)


def run_in(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(folder) | shared_libraries.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def look_up(command: str, folder: Path) -> None:
    """Fail unless the program of a command takes its options; a flow resolves its parameters, too,
    with params.yaml as it comes.
    """
    words = shlex.split(command)
    if words[0] == "make":
        tried = run_in(ROOT, f"make --dry-run {shlex.join(words[1:])}")
    elif command.startswith(FLOWS):
        own = (folder / "params.yaml").read_text()
        shutil.copy(ROOT / "params.yaml", folder)
        tried = run_in(folder, f"{command} --show")
        (folder / "params.yaml").write_text(own)
    elif words[0] == "dvc" or command.startswith("python -m "):
        read_help(command)
        return
    else:
        assert command.startswith(SHELL), f"no rule says how to try {command}"
        tried = run_in(folder, f"bash -n -c {shlex.quote(command)}")
    assert tried.returncode == 0, f"{command}\n{tried.stdout}{tried.stderr}"


def read_help(command: str) -> None:
    """Fail unless the help of a program has the options of a command."""
    words = shlex.split(command)
    start = 3 if words[0] == "python" else 1
    program = words[:start]
    for word in words[start:]:
        # A command of the program: it has a help of its own.
        if not re.fullmatch(r"[a-z]+", word) or not re.search(rf"\b{word}\b", ask(tuple(program))):
            break
        program.append(word)
    text = ask(tuple(program))
    for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", " ".join(words[start:])):
        assert re.search(rf"{option}\b", text), f"{command}: {shlex.join(program)} has no {option}"


@cache
def ask(program: tuple[str, ...]) -> str:
    """What a program prints about itself."""
    done = run_in(ROOT, f"{shlex.join(program)} --help")
    assert done.returncode == 0, f"{shlex.join(program)} --help: {done.stdout}{done.stderr}"
    return done.stdout
