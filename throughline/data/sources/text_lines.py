"""Texts as lines of files: JSON objects (.jsonl), or lines of text (.txt) with a class per file.

Files of a folder may be named as splits. Lines are read one by one; blank ones are skipped.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from throughline.data.encodings.base import Reason, RejectedValue
from throughline.data.encodings.texts import check_encoding
from throughline.data.found import ABOUT, Document, Rejected, Texts, count_kinds, refuse_odd_names
from throughline.data.sources.text_table import (
    KEY,
    check_fields,
    keep_cells,
    label_or_none,
    read_fields,
)
from throughline.data.split_names import find_split, read_name, split_files
from throughline.data.tables.delimited import count_lines
from throughline.data.tables.table_columns import name_columns, name_required
from throughline.data.tables.tabular import OtherSplits
from throughline.settings import DataSettings
from throughline.shared.errors import DataNotFound, UnreadableSource
from throughline.shared.wording import name_some

JSON = frozenset({".jsonl", ".ndjson"})
TXT = frozenset({".txt"})
_BLOCK = 1 << 20
_FASTTEXT = b"__label__"
_BLANKS = b" \t\r\f\v\xef\xbb\xbf"  # with the byte order mark that may begin a file


def scan(settings: DataSettings, *, use_splits: bool = True) -> Texts:
    """Read the file or folder at `data.path`; with `use_splits`, a line's key `split` counts."""
    root = Path(settings.path)
    check_encoding(settings.encoding, lines=True)
    paths = sorted(root.iterdir()) if root.is_dir() else [root] if root.is_file() else []
    paths = [path for path in paths if not path.name.startswith(".")]
    files = [
        path
        for path in paths
        if path.suffix.lower() in JSON | TXT and path.is_file()
        if path == root or not ABOUT.fullmatch(path.name)
    ]
    # Next to files of JSON lines, .txt files describe them.
    files = [path for path in files if path.suffix.lower() in JSON] or files
    if not files:
        raise DataNotFound(
            f"{root} is neither a file of lines ({', '.join(sorted(JSON | TXT))}) nor a folder of"
            " such files; unpack compressed ones with gunzip, name files of JSON lines .jsonl and"
            " those of texts .txt, or set `data.path`"
            + (f". It holds {name_some([path.name for path in paths], most=4)}" if paths else "")
        )
    if root.is_file() and root.suffix.lower() in TXT and settings.label_kind != "none":
        raise UnreadableSource(
            f"{root}: lines of a single .txt file have no class; use a folder with a file per class"
            " (`spam.txt`, `ham.txt`), JSON lines with a label, or data.label_kind: none"
        )
    refuse_odd_names(root, [path.name for path in files])
    split_of, left_out = _find_splits(root, files, settings)
    kept = keep_cells(root, settings)
    if kept and files[0].suffix.lower() in TXT:
        raise UnreadableSource(
            f"{root}: lines of .txt files have no column {kept.names[0]}; use JSON lines"
        )
    return Texts(
        documents=_documents(root, split_of, settings, use_splits=use_splits),
        total=sum(map(count_lines, split_of)),
        kept=kept,
        left_out=left_out,
        skipped=count_kinds(sorted({*paths} - {*files})),
    )


def _find_splits(
    root: Path, files: list[Path], settings: DataSettings
) -> tuple[dict[Path, str | None], dict[str, int]]:
    if root.is_file():
        return dict.fromkeys(files), {}
    of_lines = files[0].suffix.lower() in JSON or settings.label_kind == "none"
    by_name = settings.layout != "class"
    splits, left_out = split_files(
        root,
        files,
        settings.leave_out,
        count=count_lines,
        remedy=", or set data.layout: class to ignore splits in names",
        find=find_split if of_lines and by_name else lambda _: None,
    )
    alike: dict[str, str] = {}  # splits by the rest of the name
    for path in splits if by_name and not of_lines else ():
        _refuse_fasttext(path)
        rest, split = (named := read_name(path.stem)).rest, named.split
        if split and (not rest or alike.setdefault(rest, split) != split):
            raise UnreadableSource(
                f"{root}: {path.name} is named as a split, but the class of lines in a .txt file is"
                " the file's name",
                f"set data.layout: class if {path.stem} is a class; else use JSON lines with a"
                " label, or data.label_kind: none",
            )
    return splits, left_out


def _refuse_fasttext(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_FASTTEXT)) != _FASTTEXT:
            return
    command = f"(printf 'label\\ttext\\n'; sed 's/^__label__//; s/ /\\t/' {path.name})"
    raise UnreadableSource(
        f"{path}: its lines begin with their classes, as fastText's do",
        "make a table of each such file for data.source: text_table with data.quoting: none:"
        f"\n{command} > {path.stem}.tsv",
    )


def _documents(
    root: Path, splits: Mapping[Path, str | None], settings: DataSettings, *, use_splits: bool
) -> Iterator[Document | Rejected]:
    """Yield the lines of each file; they are of the file's split unless they name another.

    A key that is kept may be missing from some lines, but not from all.
    """
    kept, seen = settings.kept_columns, set[str]()
    others = OtherSplits(settings, known=any(splits.values())) if use_splits else None
    for path, split in splits.items():
        is_txt, label = path.suffix.lower() in TXT, label_or_none(path.stem, settings)
        for number, line in enumerate(_lines(path, settings.max_bytes), start=1):
            example_id = f"{path.name}:{number:08d}"
            if isinstance(line, int):
                reason = Reason("larger than data.max_bytes", f": {line:,} bytes")
                yield Rejected(id=example_id, reason=reason)
            elif not line.strip(_BLANKS):
                continue
            elif is_txt:
                yield Document(id=example_id, content=line, label=label, split=split)
            else:
                try:
                    fields = _read_json(line, settings)
                except RejectedValue as error:
                    yield Rejected(id=example_id, reason=error.reason)
                    continue
                if number == 1:
                    check_fields([*fields], name_required(settings, KEY), where=f"{path}, line 1")
                seen.update(fields if not seen.issuperset(kept) else ())
                yield read_fields(fields, example_id, settings, others, split=split)
    if seen:
        check_fields(sorted(seen), name_columns(settings, KEY), where=f"{root}, all lines")
    if others:
        others.refuse(root)


def _read_json(line: bytes, settings: DataSettings) -> dict[str, Any]:
    try:
        text = line.decode(settings.encoding).removeprefix("\ufeff")
        fields = json.loads(text, object_pairs_hook=_make_object)
    except UnicodeDecodeError as error:
        found = f": byte 0x{line[error.start]:02x} at {error.start:,}"
        raise RejectedValue(f"not {settings.encoding}", found) from error
    except (ValueError, RecursionError) as error:
        raise RejectedValue("not JSON", f": {error}") from error
    if not isinstance(fields, dict):
        raise RejectedValue("not a JSON object", f": {type(fields).__name__}")
    return fields


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse a key with two values, since either may be meant."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"two values for the key {key!r}")
        fields[key] = value
    return fields


def _lines(path: Path, max_bytes: int) -> Iterator[bytes | int]:
    """Yield the lines of a file without their breaks, or the size of a line that is too long."""
    with path.open("rb") as file:
        start = file.read(_BLOCK)
        if b"\r" in start and b"\n" not in start:
            raise UnreadableSource(
                f"{path}: its lines end with CR alone, as on old Macs; convert it:"
                f" tr '\\r' '\\n' < {path.name} > converted{path.suffix}"
            )
        file.seek(0)
        while line := file.readline(max_bytes + 1):
            if line.endswith(b"\n") or len(line) <= max_bytes:
                yield line.rstrip(b"\r\n")
                continue
            size = len(line)
            while not line.endswith(b"\n") and (line := file.readline(_BLOCK)):
                size += len(line)
            yield size
