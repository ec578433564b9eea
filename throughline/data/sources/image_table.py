"""Images listed in a table: CSV or Parquet with paths and classes, or numbers to predict.

Paths are relative to the table's folder. `data.path` is the folder of table and images, which DVC
watches, or the table alone. Model hubs store images in the table itself: Parquet or Arrow files
with a column of bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from throughline.data.found import ExampleFile, Files, Rejected
from throughline.data.listed_paths import find_listed
from throughline.data.manifest import SPLITS
from throughline.data.sources.table import refuse_double_spelling
from throughline.data.split_names import read_name
from throughline.data.tables import tabular
from throughline.data.tables.image_columns import find_image_column
from throughline.data.tables.odd_values import find_groups
from throughline.data.tables.table_columns import Listing, check_names, name_columns, read_listing
from throughline.data.tables.table_files import find_table_files, list_visible
from throughline.data.tables.table_paths import find_others, open_files
from throughline.data.tables.tabular import TextTable
from throughline.settings import DataSettings
from throughline.settings.source_kinds import TABLES
from throughline.shared.errors import DataNotFound
from throughline.shared.wording import name_some

UNWATCHED = "DVC does not watch the images: data.path names the table, not the folder with both"
IMAGE = "image"  # name of the images when a model is served


def scan(settings: DataSettings) -> Files:
    """Read the table at or in `data.path`; a column `split` or file names may give the splits.

    The label is a class unless `data.label_kind` says number. Columns that `data.numeric` and
    `data.categorical` name are a second input.
    """
    path = _find_table(Path(settings.path))
    held = open_files(path, settings)
    column = held and find_image_column(held, settings.path_column)
    table = tabular.read_table(path, settings)
    named = name_columns(settings, "path_column")
    if column:
        named["data.path_column"] = ()
    tabular.check_columns(table, named)
    check_names(table.path, settings, named, input_name=IMAGE)
    listing = read_listing(table)
    if settings.label_kind == "auto":
        refuse_double_spelling(table)
    columns, root = listing.columns, path if path.is_dir() else path.parent
    names, notes = (
        (column.name_examples(), {})
        if column
        else find_listed(table.cells(settings.path_column), table.path, root, settings)
    )
    found = [*_read_rows(table, listing, names, root, in_table=bool(column))]
    files = {row: one for row, one in enumerate(found) if isinstance(one, ExampleFile)}
    groups = table.cells(settings.group) if settings.group in table.columns else []
    used = {settings.path_column, *settings.label_columns}
    warnings = [*table.warnings, *listing.warnings]
    warnings += find_groups(table, [name for name in table.columns if name not in used])
    if path != Path(settings.path):
        warnings = [*find_others(root, [path]), *warnings]
    elif path.is_file() and not column:
        warnings = [UNWATCHED, *warnings]
    return Files(
        root=root,
        files=[*files.values()],
        label_kind=listing.label_kind,
        targets=listing.targets,
        listed=columns and replace(columns, values=columns.values[[*files]]),
        rejected=[one for one in found if isinstance(one, Rejected)],
        readings=listing.readings,
        dialect=listing.dialect,
        groups={file.id: groups[row] for row, file in files.items() if groups},
        warnings=warnings,
        left_out=table.left_out,
        column=column,
        notes=notes,
    )


def _read_rows(
    table: TextTable, listing: Listing, names: Sequence[str], root: Path, *, in_table: bool
) -> Iterator[ExampleFile | Rejected]:
    """Yield the example of each row, or why it has none; images are files, or `in_table`."""
    classes, numbers = table.cells(table.settings.label_columns[0]), [()] * len(table)
    if listing.numbers is not None:
        classes, numbers = [""] * len(table), [*map(tuple, listing.numbers.tolist())]
    splits = tabular.read_splits(table)
    in_paths = {} if in_table or "split" in table.columns else _read_folders(names, table.settings)
    for row, (name, (split, wrong)) in enumerate(zip(names, splits, strict=True)):
        reason = wrong or listing.problems[row]
        if not (classes[row] or numbers[row]):
            reason = "label missing"
        if not name:
            yield Rejected(id=f"row {row + 1}", reason="path missing")
        elif reason:
            yield Rejected(id=name if in_table else f"row {row + 1}: {name}", reason=reason)
        else:
            yield ExampleFile(
                id=name,
                path=root / name,
                label=classes[row],
                split=split or in_paths.get(name),
                numbers=numbers[row],
                offset=row if in_table else -1,
            )


def _read_folders(names: Sequence[str], settings: DataSettings) -> dict[str, str | None]:
    """Return the split of each path if all folders of one level name one, as in class folders."""
    paths = [name for name in names if name and settings.layout == "auto"]
    for level in zip(*(path.split("/")[:-1] for path in paths), strict=False):
        found = {folder: read_name(folder) for folder in {*level}}
        splits, rests = {one.split for one in found.values()}, {one.rest for one in found.values()}
        if {"train"} < splits <= {*SPLITS} and len(rests) == 1:
            return {path: found[one].split for path, one in zip(paths, level, strict=True)}
    return {}


def _find_table(path: Path) -> Path:
    """Return the path of the table: a file, the only one in a folder, or a folder of several."""
    if not path.is_dir():
        return path
    tables = sorted(
        one
        for one in path.iterdir()
        if one.suffix.lower() in TABLES and not one.name.startswith(".")
    )
    files = find_table_files(path)
    if len(tables) == 1 and {*files} <= {*tables}:
        return tables[0]
    if {*tables} <= {*files} if files else tables:
        return path
    if below := [one.relative_to(path) for one in list_visible(path, TABLES) if not tables]:
        raise DataNotFound(
            f"data.path: {path} holds no table, but its folders do:"
            f" {name_some([*map(str, below)])}; join these as one table, with"
            " paths relative to it and a column split (train, validation, test), or set data.path"
            " to one of the folders"
        )
    names = ", ".join(table.name for table in tables) or "none"
    raise DataNotFound(
        f"data.path: {path} holds {len(tables)} tables ({names}); it must hold tables of one kind"
        f" ({', '.join(sorted(TABLES))}) next to the images that they list, or only"
        " Parquet or Arrow files, which hold the images"
    )
