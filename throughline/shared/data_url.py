"""`data.path` as the URL of a bucket, or of what is in it."""

from __future__ import annotations

from urllib.parse import urlsplit

from throughline.shared.errors import DataNotFound, ObjectStoreFailed
from throughline.shared.object_store import (
    URL_FORMS,
    ObjectStore,
    StoredObject,
    check_url,
    open_store,
)

# As DVC writes them, whose packages know them, and as the client does.
SCHEMES = {"s3": "s3", "gs": "gs", "azure": "az"}


def is_address(path: str) -> bool:
    """Whether `data.path`, or where a file is by the manifest, is a URL. A path of this machine
    never has two slashes.
    """
    return "://" in path


def to_store_url(path: str) -> str:
    """The URL of `data.path` as stores are opened by it.

    Raises:
      ValueError: it is none, in words; a secret that it may hold is not repeated.
    """
    scheme, _, rest = path.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"found {scheme}://; expected {URL_FORMS}")
    url = check_url(f"{SCHEMES[scheme]}://{rest}")
    if {"", ".", ".."} & {*url.partition("://")[2].split("/")}:
        raise ValueError(
            "found a part of the URL that is empty, . or ..; an object has no such name"
        )
    return url


def split_address(address: str) -> tuple[str, str]:
    """The URL by which the bucket of an object is opened, and the object's name there."""
    scheme, _, rest = address.partition("://")
    bucket, _, name = rest.partition("/")
    return f"{SCHEMES.get(scheme, scheme)}://{bucket}", name


def open_below(path: str) -> ObjectStore:
    """Open what is below `data.path`; nothing is asked of the store yet.

    Raises:
      ObjectStoreFailed: it is no URL of a bucket, or credentials are incomplete.
    """
    try:
        return open_store(to_store_url(path))
    except ValueError as error:
        raise ObjectStoreFailed(f"data.path: {error}") from None


def find_single(path: str) -> tuple[ObjectStore, StoredObject]:
    """The one object that `data.path` names, and the store that it is in.

    Raises:
      DataNotFound: there is none.
      ObjectStoreFailed: as `open_below`, or the store was not reached or refuses.
    """
    url = to_store_url(path)
    above, _, name = url.rpartition("/")
    if urlsplit(url).path:
        store = open_store(above)
        if one := store.find(name):
            return store, one
    raise DataNotFound(f"data.path: {path} does not exist: no object has this name or is below it")


def check_object_exists(path: str) -> None:
    """Refuse a `data.path` where no object is.

    Raises:
      as `find_single`.
    """
    if next(open_below(path).list(), None) is None:
        find_single(path)
