"""The digest of code changes with what is computed, wherever that is, and with nothing else."""

import ast
import gc
from pathlib import Path

import pytest

from tests.support.small_data import write_files
from throughline.shared import code_identity
from throughline.shared.code_identity import code_digest, computation_digest, parse_source
from throughline.shared.errors import InvalidCode

FILES = {
    "my_models.py": '"""Models."""\nfrom blocks.dense import block\nMODEL = block("relu")\n',
    "blocks/__init__.py": "",
    "blocks/dense.py": (
        "from .of import widths\ndef block(name):\n    import extra\n    return widths, extra\n"
    ),
    "blocks/of/__init__.py": "",
    "blocks/of/widths.py": "WIDTH = 8\n",
    "extra.py": "DEPTH = 2\n",
    "other.py": "UNUSED = 1\n",
}


@pytest.fixture
def project(tmp_path):
    return write_files(tmp_path, FILES)


@pytest.mark.parametrize(
    ("name", "old", "new", "counts"),
    [
        ("my_models.py", "relu", "sigmoid", True),
        ("blocks/of/widths.py", "8", "9", True),
        ("blocks/__init__.py", "", "SEED = 1\n", True),
        ("blocks/of/__init__.py", "", "SEED = 1\n", True),
        ("extra.py", "2", "3", True),
        # Neither other modules nor docstrings, comments and formatting count.
        ("other.py", "1", "2", False),
        ("my_models.py", "Models.", "Models of our own.", False),
        ("blocks/of/widths.py", "WIDTH = 8", "WIDTH = (\n    8\n)", False),
    ],
)
def test_the_digest_changes_with_what_anything_imported_computes(project, name, old, new, counts):
    before, text = code_digest("my_models", roots=[project]), (project / name).read_text()
    assert old in text
    (project / name).write_text(text.replace(old, new) if old else text + new)
    assert (code_digest("my_models", roots=[project]) != before) is counts


def test_installed_modules_count_with_their_file_and_unknown_ones_with_their_name(project):
    names = ("json.decoder", "json.encoder", "no_such_module", "nor_this")
    assert len({code_digest(name, roots=[project]) for name in names}) == len(names)


def test_code_that_is_not_python_is_named_with_its_line(project):
    (project / "broken.py").write_text("import os\n\ndef compute(:\n    pass\n")
    with pytest.raises(InvalidCode, match=r"broken.py, line 3: invalid syntax"):
        code_digest("broken", roots=[project])


SETTINGS = """
from pydantic import Field

UNUSED = 1
SHARE = 20
DIVISOR = SHARE + 1


class Words:
    PLAIN = "a"
    MARK: ClassVar[str] = "!"
    count: int = 1


class Section:
    size: int = Field(default=1, description="rows")
    other: int = 3

    @property
    def part(self):
        \"\"\"A part.\"\"\"
        return self.size // DIVISOR, Words.PLAIN + Words.MARK
"""


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("self.size // DIVISOR", "self.size % DIVISOR", True),
        ("SHARE = 20", "SHARE = 21", True),
        ('PLAIN = "a"', 'PLAIN = "b"', True),
        ('MARK: ClassVar[str] = "!"', 'MARK: ClassVar[str] = "?"', True),
        ("count: int = 1", "count: int = 2", False),  # a default is a value of the settings
        ("UNUSED = 1", "UNUSED = 2", False),
        ('description="rows"', 'description="lines"', False),
    ],
)
def test_what_settings_compute_is_their_functions_and_what_these_use(tmp_path, old, new, counts):
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    assert old in SETTINGS
    before.write_text(SETTINGS)
    after.write_text(SETTINGS.replace(old, new))
    assert (computation_digest([before]) != computation_digest([after])) is counts


def test_a_constant_that_another_module_of_the_settings_defines_counts(tmp_path):
    base, section = tmp_path / "base.py", tmp_path / "section.py"
    section.write_text("from base import LIMIT\n\n\ndef limit(value):\n    return value < LIMIT\n")
    base.write_text("LIMIT = 1\n")
    one = computation_digest([base, section])
    base.write_text("LIMIT = 2\n")
    assert computation_digest([base, section]) != one


def test_what_the_garbage_collection_runs_does_not_disturb_the_reading_of_a_file():
    """Before Python 3.11.8 and 3.12.2 a finalizer that parses makes the tree around it fail."""
    path, thresholds = Path(code_identity.__file__), gc.get_threshold()
    gc.callbacks.append(lambda phase, info: ast.parse("1 + 2"))
    gc.enable()
    gc.set_threshold(1)
    try:
        tree = parse_source(path)
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*thresholds)
    assert ast.dump(tree) == ast.dump(ast.parse(path.read_bytes()))
