"""Write docs/configurations.md and docs/errors.md from the code: `python infra/reference.py`; the tests compare them.

The tables come from the settings, the op registry and the errors; what stands above the marker in configurations.md is
written by hand and kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tasks import errors  # noqa: E402
from tasks.params import Document  # noqa: E402
from tasks.pipelines.ops import REGISTRY  # noqa: E402

MARKER = "<!-- generated: everything below comes from the code -->"


def configurations(kept: str) -> str:
    """The hand-written part and the tables of all sections and ops."""
    lines = [kept.split(MARKER)[0].rstrip(), "", MARKER, "", "## Every key", ""]
    for name, field in Document.model_fields.items():
        section = _model(field.annotation)
        lines += [f"### `{name}`" + (" (one mapping per configuration)" if name == "pipelines" else ""), ""]
        if section is None:
            lines += [f"{field.description} Default: `{_default(field)}`.", ""]
            continue
        lines += [" ".join((section.__doc__ or "").split()), "", "| key | default | meaning |", "|---|---|---|", *_rows(section, ""), ""]
    lines += ["## Ops", "", "| op | takes | random | on the device | what it does | arguments |", "|---|---|---|---|---|---|"]
    for name, op in REGISTRY.items():
        arguments = ", ".join(f"`{key}` ({field.description}; default `{_default(field)}`)" for key, field in op.model_fields.items()) or "none"
        takes = {"both": "example or batch"}.get(op.takes, op.takes)
        what = " ".join((op.__doc__ or "").split())
        lines.append(f"| `{name}` | {takes} | {_yes(op.random)} | {_yes(op.device)} | {what} | {arguments} |")
    return "\n".join(lines) + "\n"


def error_reference() -> str:
    """Every error a user can meet, with what it means."""
    lines = ["# Errors", "", "Shown as one paragraph, with exit code 2. What is not listed here is a bug and keeps its traceback.", ""]
    for kind in errors.UserError.__subclasses__():
        lines += [f"* **{kind.__name__}**: {' '.join((kind.__doc__ or '').split())}"]
    return "\n".join(lines) + "\n"


def _rows(section: type[BaseModel], prefix: str) -> list[str]:
    rows = []
    for key, field in section.model_fields.items():
        inner = _model(field.annotation)
        if inner is not None:
            note = field.description or " ".join((inner.__doc__ or "").split())
            rows += [f"| `{prefix}{key}` | | {note} |", *_rows(inner, f"{prefix}{key}.")]
        else:
            rows.append(f"| `{prefix}{key}` | `{_default(field)}` | {field.description or _range(field)} |")
    return rows


def _model(annotation: Any) -> type[BaseModel] | None:
    options = [annotation, *get_args(annotation)]
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    return str(field.default) if field.default is not PydanticUndefined else "{}"


def _range(field: Any) -> str:
    return ", ".join(str(item) for item in field.metadata)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def main() -> None:
    """Write both files."""
    path = ROOT / "docs" / "configurations.md"
    path.write_text(configurations(path.read_text() if path.exists() else "# Configurations\n"))
    (ROOT / "docs" / "errors.md").write_text(error_reference())


if __name__ == "__main__":
    main()
