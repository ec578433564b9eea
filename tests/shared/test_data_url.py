"""URLs that `data.path` may be."""

from __future__ import annotations

import pytest

from throughline.shared.data_url import (
    check_object_exists,
    find_single,
    is_address,
    open_below,
    split_address,
    to_store_url,
)
from throughline.shared.errors import DataNotFound, ObjectStoreFailed
from throughline.shared.object_store import open_store


def test_urls_are_those_that_dvc_knows_and_others_are_refused():
    assert to_store_url("azure://box/x/") == "az://box/x"
    assert to_store_url("s3://data") == "s3://data"
    assert split_address("s3://data/a b/c#1?.jpg") == ("s3://data", "a b/c#1?.jpg")
    assert split_address("azure://box/a b/1.jpg") == ("az://box", "a b/1.jpg"), "as it is opened"
    said = "found az://; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or azure://"
    for path, words in (("az://box/x", said), ("s3://data/../x", "empty, . or ..")):
        with pytest.raises(ValueError, match=words):
            to_store_url(path)
    assert [is_address(path) for path in ("s3://a/b", "a/b", "/a//b")] == [True, False, False]


@pytest.mark.integration
def test_what_is_there_is_below_the_url_or_its_object(bucket_url):
    open_store(bucket_url).write("photos/cat/1.jpg", b"1")
    assert [one.name for one in open_below(f"{bucket_url}/photos").list()] == ["cat/1.jpg"]
    store, one = find_single(f"{bucket_url}/photos/cat/1.jpg")
    assert (store.url, one.name, one.bytes) == (f"{bucket_url}/photos/cat", "1.jpg", 1)
    for path in ("photos", "photos/cat/1.jpg"):
        check_object_exists(f"{bucket_url}/{path}")
    for path in ("phot", "photos/cat/1.jpg/x"):
        with pytest.raises(DataNotFound, match=rf"{bucket_url}/{path} does not exist"):
            check_object_exists(f"{bucket_url}/{path}")
    with pytest.raises(ObjectStoreFailed, match="found ftp://"):
        open_below("ftp://host/x")
