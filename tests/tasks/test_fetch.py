"""Known datasets come from the first place that has them; what fetch did not write stays."""

import gzip
import hashlib
import socket
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tasks import fetch as stage
from tasks.fetch import fetch
from tests.support.small_data import picture, read_files, write_files
from throughline.data import known_datasets, remote
from throughline.shared.errors import DataNotFound, UnexpectedFiles
from throughline.shared.files import read_json

PACKAGE = "dataset-for-a-test"
FILES = {name: gzip.compress(name.encode(), mtime=0) for name in known_datasets.FASHION_MNIST}


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """The four files, small ones, nowhere on this machine and at no address that answers."""
    apt_sources(tmp_path, monkeypatch, "")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        changes = {
            "FASHION_MNIST": {name: hashlib.sha256(name.encode()).hexdigest() for name in FILES},
            "FASHION_MNIST_COPIES": (tmp_path / "system", tmp_path / "user"),
            "FASHION_MNIST_PACKAGE": PACKAGE,
            "FASHION_MNIST_ADDRESS": f"http://127.0.0.1:{deaf.getsockname()[1]}/",
            "WALLPAPER_PACKAGES": (PACKAGE,),
        }
        for name, value in changes.items():
            monkeypatch.setattr(known_datasets, name, value)
        for name in ("ANSWER_S", "PAUSE_S"):
            monkeypatch.setattr(remote, name, 0.5)
        yield FILES


def apt_sources(folder, monkeypatch, line):
    """Let apt know no sources but this one."""
    (folder / "sources.list").write_text(line)
    only = f'Dir::Etc::sourcelist "{folder}/sources.list";\nDir::Etc::sourceparts "-";\n'
    (folder / "apt.conf").write_text(only)
    monkeypatch.setenv("APT_CONFIG", str(folder / "apt.conf"))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A package repository: `publish(files)` puts files below /usr/share into its package."""

    def publish(files):
        root, deb = tmp_path / "package", tmp_path / "repository" / "package.deb"
        control = f"Package: {PACKAGE}\nVersion: 1\nArchitecture: all\nDescription: test\n"
        control += "Maintainer: T <t@example.org>\n"
        shared = {f"usr/share/{name}": data for name, data in files.items()}
        write_files(root, {"DEBIAN/control": control, **shared})
        deb.parent.mkdir()
        build = ["dpkg-deb", "--root-owner-group", "-b", root, deb]
        subprocess.run(build, check=True, capture_output=True)
        size, digest = deb.stat().st_size, hashlib.sha256(deb.read_bytes()).hexdigest()
        control += f"Filename: ./package.deb\nSize: {size}\nSHA256: {digest}\n"
        (deb.parent / "Packages").write_text(control)
        apt_sources(tmp_path, monkeypatch, f"deb [trusted=yes] file:{deb.parent} ./\n")

    return publish


@pytest.fixture
def server(tmp_path, dataset, monkeypatch):
    """Serves the folder `published`; the data set's address is its own."""
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "published")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{running.server_port}/"
        monkeypatch.setattr(known_datasets, "FASHION_MNIST_ADDRESS", address)
        for name in ("ANSWER_S", "PAUSE_S"):
            monkeypatch.setattr(remote, name, 240)
        yield address
        running.shutdown()


@pytest.mark.integration
def test_a_copy_on_this_machine_comes_first_then_the_official_download_then_a_package(
    dataset, tmp_path, repository, server
):
    """Which is not installed; a better place is added each time."""
    repository({f"datasets/{name}": data for name, data in dataset.items()})
    for place, origin in ((None, PACKAGE), ("published", server), ("user", f"{tmp_path}/user")):
        if place:
            write_files(tmp_path / place, dataset)
        raw = tmp_path / f"raw-{place}"
        assert origin in fetch("fashion_mnist", raw)
        files = read_files(raw)
        assert files.pop(f"fashion_mnist/{stage.ORIGIN}")
        assert files == {f"fashion_mnist/{name}": data for name, data in dataset.items()}
    assert subprocess.run(["dpkg", "-s", PACKAGE], capture_output=True, check=False).returncode != 0


@pytest.mark.integration
@pytest.mark.usefixtures("server")
def test_something_else_than_the_published_files_is_refused_wherever_it_comes_from(
    dataset, tmp_path, repository
):
    forged = {name: gzip.compress(b"forged") for name in dataset}
    write_files(tmp_path / "system", forged)
    write_files(tmp_path / "published", forged)
    repository({f"datasets/{name}": data for name, data in forged.items()})
    with pytest.raises(DataNotFound, match=r"its SHA-256 differs.*does not hold the published"):
        fetch("fashion_mnist", tmp_path / "raw")
    assert not (tmp_path / "raw" / "fashion_mnist").exists()


@pytest.mark.integration
def test_wallpapers_come_out_of_packages_too(dataset, tmp_path, repository, monkeypatch):
    picture(1, size=(1600, 800)).save(tmp_path / "wallpaper.jpg")
    repository({"wallpapers/Dawn/large.jpg": (tmp_path / "wallpaper.jpg").read_bytes()})
    make = partial(known_datasets.make_photos, roots=[tmp_path / "nowhere"], count=3)
    monkeypatch.setattr(stage, "FETCHERS", {"photos": make})
    assert "Debian" in fetch("photos", tmp_path / "raw")
    photos = tmp_path / "raw" / "photos"
    assert len(list((photos / "dawn").glob("*.jpg"))) == 3
    assert {path.name for path in photos.iterdir()} == {"dawn", stage.ORIGIN}


@pytest.mark.integration
def test_what_is_nowhere_to_be_had_is_told_with_all_that_was_tried(dataset, tmp_path):
    tried = rf"not in .*; http://127.0.0.1.*; apt-get download: .*install Debian's {PACKAGE}"
    with pytest.raises(DataNotFound, match=tried):
        fetch("fashion_mnist", tmp_path / "raw")


HAPPENS = {
    "added": lambda folder: (folder / "mine.txt").write_text("mine"),
    "changed": lambda folder: min(folder.glob("*.gz")).write_bytes(b"mine"),
    "linked": lambda folder: folder.symlink_to(folder.rename(folder.with_name("elsewhere"))),
}


@pytest.mark.parametrize("happens", HAPPENS.values(), ids=HAPPENS)
def test_a_folder_with_files_that_fetch_did_not_write_is_left_alone(dataset, tmp_path, happens):
    write_files(tmp_path / "user", dataset)
    folder = tmp_path / "raw" / "fashion_mnist"
    fetch("fashion_mnist", tmp_path / "raw")
    happens(folder)
    before = read_files(folder)
    with pytest.raises(UnexpectedFiles, match="fetch did not"):
        fetch("fashion_mnist", tmp_path / "raw")
    assert read_files(folder) == before


def test_what_fetch_wrote_itself_or_equals_it_is_replaced(dataset, tmp_path):
    write_files(tmp_path / "user", dataset)
    origin = tmp_path / "raw" / "fashion_mnist" / stage.ORIGIN
    fetch("fashion_mnist", tmp_path / "raw")
    fetch("fashion_mnist", tmp_path / "raw")
    origin.unlink()
    fetch("fashion_mnist", tmp_path / "raw")
    assert set(read_json(origin)["files"]) == set(dataset)
