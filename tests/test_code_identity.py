"""The digest of code changes with what is computed, wherever it is imported from, and with nothing
else.
"""

from __future__ import annotations

import pytest

from tasks.code_identity import code_digest, project_files
from tasks.errors import InvalidCode

FILES = {
    "my_models.py": (
        '"""Models."""\nfrom blocks.dense import block\n\n\ndef build():\n    return'
        ' block("relu")\n'
    ),
    "blocks/__init__.py": "",
    "blocks/dense.py": (
        "from . import widths\n\n\ndef block(activation):\n    import extra\n\n    return"
        " widths.WIDTH, extra.DEPTH\n"
    ),
    "blocks/widths.py": "WIDTH = 8\n",
    "extra.py": "DEPTH = 2\n",
    "other.py": "UNUSED = 1\n",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def edit(project, name, old, new):
    text = (project / name).read_text()
    assert old in text or not old
    (project / name).write_text(text.replace(old, new) if old else text + new)


CHANGES = [
    ("my_models.py", "relu", "sigmoid"),
    ("blocks/dense.py", "widths.WIDTH", "2 * widths.WIDTH"),
    ("blocks/widths.py", "8", "9"),
    ("blocks/__init__.py", "", "SEED = 1\n"),
    ("extra.py", "2", "3"),
]


@pytest.mark.parametrize(("name", "old", "new"), CHANGES)
def test_a_change_of_anything_that_is_imported_changes_the_digest(project, name, old, new):
    before = code_digest("my_models", roots=[project])
    edit(project, name, old, new)
    assert code_digest("my_models", roots=[project]) != before


def test_packages_on_the_way_to_a_module_count(tmp_path):
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    for name in ("outer/__init__.py", "outer/inner/__init__.py", "outer/inner/leaf.py"):
        (tmp_path / name).write_text("")
    before = code_digest("outer.inner.leaf", roots=[tmp_path])
    (tmp_path / "outer" / "__init__.py").write_text("SEED = 1\n")
    assert code_digest("outer.inner.leaf", roots=[tmp_path]) != before


KEPT = [
    ("other.py", "1", "2"),
    ("my_models.py", "Models.", "Models of our own."),
    ("extra.py", "", "# how many layers\n"),
    ("blocks/widths.py", "WIDTH = 8", "WIDTH = (\n    8\n)"),
]


@pytest.mark.parametrize(("name", "old", "new"), KEPT)
def test_comments_docstrings_formatting_and_other_modules_do_not_count(project, name, old, new):
    before = code_digest("my_models", roots=[project])
    edit(project, name, old, new)
    assert code_digest("my_models", roots=[project]) == before


def test_the_files_of_a_module_are_those_it_needs(project):
    files = project_files("my_models", roots=[project])
    assert {path.relative_to(project).as_posix() for path in files.values()} == set(FILES) - {
        "other.py"
    }


def test_installed_modules_count_with_their_file_and_unknown_ones_with_their_name(project):
    assert code_digest("json.decoder", roots=[project]) != code_digest(
        "json.encoder", roots=[project]
    )
    assert code_digest("no_such_module", roots=[project]) != code_digest(
        "nor_this", roots=[project]
    )


def test_code_that_is_not_python_is_named_with_its_line(project):
    (project / "broken.py").write_text("import os\n\ndef compute(:\n    pass\n")
    with pytest.raises(InvalidCode, match=r"broken.py, line 3: invalid syntax"):
        code_digest("broken", roots=[project])
