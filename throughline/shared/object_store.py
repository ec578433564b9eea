"""Objects in a bucket: read, written, listed and removed, with time limits and explained errors.

The client is obstore. It looks for credentials where the provider's own tools do
(AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL_S3, AWS_ALLOW_HTTP, the identity of a pod or machine, …), never
in a URL or a parameter, and no message contains them. Its threads do not survive a fork, so the
process that uses it imports it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from throughline.shared.errors import ObjectStoreFailed

URL_FORMS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azure://CONTAINER/PREFIX"
RETRIES = 3  # after a server error, a lost connection or a timeout
CONNECT_S = 5
REQUEST_S = 60  # from the first byte sent to the last received
# Waits between tries: 0.5 s, then up to 1.5 and 4.5 s, enough for a store to restart.
BACKOFF = {
    "init_backoff": timedelta(milliseconds=500),
    "max_backoff": timedelta(seconds=5),
    "base": 3,
}
# Larger objects are uploaded in parts. Simultaneous uploads share bandwidth and time limit, so at
# most 64 MiB are under way, whatever the number of threads.
PART_BYTES, MOST_PARTS = 8 << 20, 9_000  # stores accept 10,000
PARTS_AT_ONCE, PUTS_AT_ONCE = 2, 4
_PUTTING = threading.BoundedSemaphore(PUTS_AT_ONCE)
# Simultaneous reads of sources share the network, the time limit and memory, too.
READS_AT_ONCE = 32
_READING = threading.BoundedSemaphore(READS_AT_ONCE)
# Services of cloud machines, which the client asks for credentials if the environment has none.
CREDENTIAL_SERVICES = ("169.254.169.254", "metadata.google.internal")
_TRUE = ("1", "true", "yes", "on")
# The client's error about one object's name, which keeps it from listing any object.
_ODD_NAME = re.compile(r'(?:parsing )?Path "(.+?)"(?: contained empty|: Encountered illegal)', re.S)
# Error codes of expired temporary credentials, and of a clock that invalidates signatures.
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "InvalidToken")
_WRONG_CLOCK = ("RequestTimeTooSkewed", "RequestExpired")


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider in messages: the prefix of its variables, the variables of its credentials and
    endpoint, and its word for a bucket.
    """

    variables: str
    credentials: str
    endpoint: str
    bucket: str = "bucket"


PROVIDERS = {
    "s3": Provider(
        variables="AWS",
        credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        endpoint="AWS_ENDPOINT_URL",
    ),
    "gs": Provider(
        variables="GOOGLE", credentials="GOOGLE_APPLICATION_CREDENTIALS", endpoint="GOOGLE_BASE_URL"
    ),
    "az": Provider(
        variables="AZURE",
        credentials="AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        endpoint="AZURE_STORAGE_ENDPOINT",
        bucket="container",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)  # there may be millions
class StoredObject:
    """An object of a store: its name below the store's prefix, its size [bytes], when it was last
    written, and the store's tag for its content.
    """

    name: str
    bytes: int
    modified_at: datetime
    tag: str


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """A bucket, or the part of it below a prefix, to which names are relative. Thread-safe.

    All methods raise ObjectStoreFailed, which names the object and a remedy.
    """

    url: str
    client: Any = field(repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Let another process open the store with its own credentials; none are sent."""
        return open_store, (self.url,)

    def address(self, name: str) -> str:
        shown = self.url.replace("az://", "azure://", 1)  # as people and DVC write it
        return f"{shown}/{name}" if name else shown

    def find(self, name: str) -> StoredObject | None:
        """Return the store's description of an object; None if it does not exist."""
        with self._in_words(name):
            try:
                return _describe(self.client.head(name))
            except FileNotFoundError:
                return None

    def read(self, name: str) -> bytes:
        with self._in_words(name):
            return bytes(self.client.get(name).bytes())

    def read_range(self, name: str, *, start: int, length: int) -> memoryview:
        """Return the bytes [start, start + length) of an object; fail if it is shorter."""
        with self._in_words(name):
            data = memoryview(self.client.get_range(name, start=start, length=length))
        if data.nbytes != length:
            raise ObjectStoreFailed(
                f"{self.address(name)} ends after {start + data.nbytes:,} bytes, but"
                f" {start + length:,} are needed; it was cut off or replaced: restore it"
            )
        return data

    def read_as_listed(
        self, one: StoredObject, *, start: int = 0, length: int | None = None
    ) -> bytes:
        """Return `length` bytes of an object from `start` on; without a length, the whole object.

        Raises ObjectStoreFailed if the object has changed since it was listed.
        """
        with self._in_words(one.name), _READING:
            whole = length is None
            options = None if whole else {"range": (start, start + length)}  # type: ignore[operator]
            answer = self.client.get(one.name, options=options)
            found = _describe(answer.meta)
            if (found.tag, found.bytes) != (one.tag, one.bytes):
                raise ObjectStoreFailed(
                    f"{self.address(one.name)} has changed since it was listed; run the same"
                    " command again"
                )
            return bytes(answer.bytes())

    def stream(self, name: str) -> Iterator[bytes]:
        """Yield all bytes of an object in pieces, for objects larger than memory."""
        with self._in_words(name):
            for piece in self.client.get(name).stream():
                yield bytes(piece)

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, replacing one of the same name; it exists whole or not at all."""
        with self._in_words(name), _PUTTING:
            self.client.put(
                name,
                data,
                use_multipart=len(data) > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    def write_file(self, name: str, path: Path) -> None:
        part = max(PART_BYTES, -(-path.stat().st_size // MOST_PARTS))
        with path.open("rb") as file, self._in_words(name), _PUTTING:
            self.client.put(name, file, chunk_size=part, max_concurrency=PARTS_AT_ONCE)

    def copy(self, name: str, to: str) -> None:
        """Let the store copy an object to another name, without transfer to this machine."""
        with self._in_words(name):
            self.client.copy(name, to)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield all objects below the folder `prefix`."""
        with self._in_words(prefix):
            for page in self.client.list(prefix or None):
                yield from map(_describe, page)

    def list_folder(self, name: str = "") -> tuple[list[str], list[StoredObject]]:
        """Return the names of the folders and the objects that are directly in a folder."""
        with self._in_words(name):
            page = self.client.list_with_delimiter(name or None)
            return list(page["common_prefixes"]), [_describe(one) for one in page["objects"]]

    def delete(self, names: Sequence[str]) -> None:
        with self._in_words(names[0] if names else ""):
            try:
                self.client.delete(list(names))
            except FileNotFoundError:
                for name in names if len(names) > 1 else ():
                    self.delete([name])

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise ObjectStoreFailed(
                f"{self.address(name)}: {_explain(error, PROVIDERS[urlsplit(self.url).scheme])}"
            ) from None


def check_url(url: str) -> str:
    """Return a bucket's URL without a trailing slash; ValueError, which repeats no credentials."""
    parts = urlsplit(url)
    # A secret may contain a slash, which seems to end user and host.
    if {":", "@"} & {*parts.netloc} or parts.query or parts.fragment:
        raise ValueError(
            "found a user, password or query in the URL; credentials come from the environment,"
            " such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.scheme not in PROVIDERS or not parts.netloc:
        shown = "an address" if "@" in url else repr(url)
        raise ValueError(f"found {shown}, which is not a bucket; expected {URL_FORMS}")
    return url.rstrip("/")


def open_store(url: str) -> ObjectStore:
    """Open the store at `url` (s3://, gs:// or az://), without a request; or ObjectStoreFailed."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        checked = check_url(url)
    except ValueError as error:
        raise ObjectStoreFailed(str(error)) from None
    # Options given here would override those of the environment.
    provider = PROVIDERS[urlsplit(checked).scheme]
    plain = os.environ.get(f"{provider.variables}_ALLOW_HTTP", "").lower() in _TRUE
    # The endpoint for S3 alone, which DVC's client knows, but obstore does not.
    endpoint = os.environ.get(f"{provider.endpoint}_S3") if provider.variables == "AWS" else None
    try:
        client = from_url(
            quote(checked, safe=":/"),  # otherwise obstore decodes %
            config={"endpoint": endpoint} if endpoint else None,
            client_options={
                "allow_http": plain,
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=REQUEST_S * (RETRIES + 1)),
                "backoff": BACKOFF,  # type: ignore[typeddict-item]
            },
        )
    except (BaseError, ValueError) as error:
        raise ObjectStoreFailed(f"{checked}: {_explain(error, provider)}") from None
    return ObjectStore(url=checked, client=client)


def _describe(meta: Any) -> StoredObject:
    return StoredObject(
        name=meta["path"],
        bytes=meta["size"],
        modified_at=meta["last_modified"],
        tag=(meta["e_tag"] or "").strip('"'),
    )


def _explain(error: Exception, provider: Provider) -> str:
    """Explain obstore's error, with a remedy, but without XML and signatures of URLs."""
    text = str(error).partition("\n\nDebug source")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    status = re.search(r"status code: (\d{3})", text)
    what = code[1] if code else f"HTTP {status[1]}" if status else ""
    if odd := _ODD_NAME.search(text):
        return (
            f"the name {odd[1]!r} has an empty part, a part of dots alone, or a control character,"
            " so the object cannot be reached; rename or remove it, or name a folder that does not"
            " hold it"
        )
    if what in ("NoSuchBucket", "ContainerNotFound"):
        return f"there is no such {provider.bucket}; create it, or correct the URL"
    if isinstance(error, FileNotFoundError):
        return f"there is no such object, or no such {provider.bucket}"
    if refused := _explain_refusal(what, status[1] if status else "", provider):
        return refused
    if any(service in text for service in CREDENTIAL_SERVICES):
        return (
            "no credentials were found; set them in the environment, such as"
            f" {provider.credentials} (files such as ~/.aws/credentials are not read)"
        )
    if not status and ("Missing" in text or "must be specified" in text):
        missing = text.rpartition("error: ")[2].strip()
        return f"credentials are incomplete ({missing}); set them in the environment"
    if "incorrectly configured region" in text:
        return f"the {provider.bucket} is in another region; set AWS_REGION to its own"
    if "builder error" in text:
        return (
            "the endpoint is not an https:// address; for a store of your own without TLS, set"
            f" {provider.variables}_ALLOW_HTTP=true"
        )
    tries = re.search(r"after (\d+) retries", text)
    again = f", in each of {int(tries[1]) + 1} attempts" if tries and tries[1] != "0" else ""
    if status:
        return f"the store answered {what} ({status[1]}){again}; try again, or see its logs"
    reason = re.sub(r"\?\S+", "", text.rpartition("HTTP error: ")[2] or text).strip()
    return (
        f"the store was not reached or stopped answering ({reason}){again}; check the network and"
        f" the endpoint, such as {provider.endpoint}"
    )


def _explain_refusal(what: str, status: str, provider: Provider) -> str:
    """Explain a refusal due to credentials or clock; "" for others. HEAD gets no error codes."""
    if what in _EXPIRED or (what == "HTTP 400" and provider.variables == "AWS"):
        return (
            f"temporary credentials have expired or are incomplete ({what}); set new ones in the"
            f" environment, {provider.credentials} and what belongs to them, such as"
            " AWS_SESSION_TOKEN, and run the same command again"
        )
    if what in _WRONG_CLOCK:
        return f"this machine's clock differs too much from the store's ({what}); correct it"
    if status in ("401", "403"):
        clock = "; check this machine's clock, too" if what == "HTTP 403" else ""
        return (
            f"no permission ({what}); check the credentials in the environment, such as"
            f" {provider.credentials}, and their permissions in this {provider.bucket}{clock}"
        )
    return ""
