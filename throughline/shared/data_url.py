"""`data.path` as the URL of a bucket, or of objects in it."""

from urllib.parse import urlsplit

from throughline.shared.errors import DataNotFound, ObjectStoreFailed
from throughline.shared.object_store import (
    URL_FORMS,
    ObjectStore,
    StoredObject,
    check_url,
    open_store,
)

# URL schemes as DVC and its users write them, and as the client (obstore) does.
SCHEMES = {"s3": "s3", "gs": "gs", "azure": "az"}


def is_address(path: str) -> bool:
    """Return whether a path, from `data.path` or the manifest, is a URL."""
    return "://" in path


def to_store_url(path: str) -> str:
    """Return the URL of the store of this `data.path`, or raise ValueError without its secrets."""
    scheme, _, rest = path.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"found {scheme}://; expected {URL_FORMS}")
    url = check_url(f"{SCHEMES[scheme]}://{rest}")
    if {"", ".", ".."} & {*url.partition("://")[2].split("/")}:
        raise ValueError(
            "found a part of the URL that is empty, . or ..; names of objects have no such parts"
        )
    return url


def split_address(address: str) -> tuple[str, str]:
    """Split an object's address into the URL by which its bucket is opened, and its name."""
    scheme, _, rest = address.partition("://")
    bucket, _, name = rest.partition("/")
    return f"{SCHEMES.get(scheme, scheme)}://{bucket}", name


def open_below(path: str) -> ObjectStore:
    """Open the store below `data.path` without sending a request; raises ObjectStoreFailed."""
    try:
        return open_store(to_store_url(path))
    except ValueError as error:
        raise ObjectStoreFailed(f"data.path: {error}") from None


def find_single(path: str) -> tuple[ObjectStore, StoredObject]:
    """Return the object that `data.path` names, and its store; DataNotFound, ObjectStoreFailed."""
    url = to_store_url(path)
    above, _, name = url.rpartition("/")
    if urlsplit(url).path:
        store = open_store(above)
        if one := store.find(name):
            return store, one
    raise DataNotFound(f"data.path: {path} does not exist: no object has this name or is below it")


def check_object_exists(path: str) -> None:
    """Raise as `find_single` does, unless `data.path` names an object or a prefix of objects."""
    if next(open_below(path).list(), None) is None:
        find_single(path)
