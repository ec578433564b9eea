"""The image, the stack and the object store of a machine, its secrets, killed and damaged at any
moment; which demos `make` refuses.
"""

import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
import typer
from docker.utils.build import exclude_paths
from ruamel.yaml import YAML

from flows.servers.services import reserved_port
from infra import store
from infra.local import clusters, postgres
from infra.local.__main__ import stores
from infra.local.stack_config import SETTINGS_FILE, load_stack
from tests.support.project import ROOT, environment, make_project, run
from tests.support.skips import need
from tests.support.small_data import write_files
from tests.support.stack import wait_for
from tests.support.worktrees import git
from throughline.shared.errors import ServiceFailed
from throughline.tracking.comparison_run import UI_URL

INFRA = ROOT / "infra"
DOCKERFILE = (INFRA / "Dockerfile").read_text()
TEXT = (INFRA / "compose.yaml").read_text()
STACK = YAML(typ="safe").load(TEXT)
SECRETS = "PREFECT_AUTH MLFLOW_PASSWORD MLFLOW_SECRET POSTGRES_PASSWORD S3_KEY S3_SECRET"
# Where secrets and results could be.
PLANTED = """
    infra/.env infra/.env.bak infra/env .env tasks/.env flows/.env.py
    throughline/data/.hidden/x.py .dvc/config.local .dvc/cache/files/md5/00/1 .dvc/tmp/rwlock
    .git/config .netrc .ssh/id_ed25519 .venv/bin/x.py .throughline/ui/secrets.json
    .throughline/stack/settings.json .throughline/workspaces/x/tasks/y.py data/raw/x.npz
    runs/naive/model.keras report/index.html mlartifacts/0/x/artifacts/model.keras mlflow.db
    mlflow.db-wal infra/kubernetes/secret.yaml infra/local/settings.json secrets.py
    backup/settings.json backup/mlflow_auth.dump throughline/plan/credentials.json
    throughline/shared/key.pem flows/secrets.json tasks/__pycache__/x.cpython-311.pyc id_rsa
    kaggle.json
"""
NEEDED = """
    LICENSE pyproject.toml uv.lock whowaits/README.md whowaits/pyproject.toml
    flows/orchestration/job-template.json infra/store.py infra/mlflow-auth.ini
"""  # besides code


@pytest.mark.parametrize("name", STACK["services"])
def test_a_service_is_pinned_healthy_and_not_exposed(name):
    service = STACK["services"][name]
    assert re.search(r":\d+\.\d+", service["image"]) and service["healthcheck"]["test"]
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
    for needed, condition in service.get("depends_on", {}).items():
        assert needed in STACK["services"] and condition == {"condition": "service_healthy"}
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["networks"]) <= set(STACK["networks"])
    mounted = [volume.partition(":")[0] for volume in service.get("volumes", [])]
    assert all(volume in STACK["volumes"] or (INFRA / volume).exists() for volume in mounted)


def test_every_secret_comes_from_the_environment_and_none_has_a_default():
    named = re.findall(r"(?<!\$)\$\{([^}]*)\}", TEXT)
    assert all(re.fullmatch(r"[A-Z0-9_]+:\?.+", text) for text in named), "what lacks is named"
    assert {text.partition(":")[0] for text in named} == {*SECRETS.split()}


def test_servers_that_others_reach_ask_who_is_there():
    prefect = STACK["services"]["prefect"]["environment"]
    assert "PREFECT_SERVER_API_AUTH_STRING" in prefect
    assert prefect["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    origins = {*prefect["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")}
    assert origins == {"http://127.0.0.1:4200", "http://localhost:4200"}
    assert "--app-name basic-auth" in STACK["services"]["mlflow"]["command"]
    environment = STACK["services"]["worker"]["environment"]
    for name, variable in (("prefect", "PREFECT_UI_URL"), ("mlflow", UI_URL)):
        (port,) = STACK["services"][name]["ports"]  # links lead to where browsers reach it
        assert environment[variable] == f"http://{port.rpartition(':')[0]}"


def test_the_service_that_runs_anybodys_graphs_reaches_neither_the_stores_nor_the_world():
    for name in ("dispatcher", "input-worker-1", "input-worker-2"):
        assert STACK["services"][name]["networks"] == ["input"]
    assert STACK["networks"]["input"]["internal"] and STACK["networks"]["stores"]["internal"]
    reach = {name for name, one in STACK["services"].items() if "stores" in one["networks"]}
    assert reach == {"postgres", "store", "prefect", "mlflow", "worker", "worker-gpu"}


def test_volumes_belong_to_the_user_that_writes_them():
    owner = "--owner=throughline --group=throughline"
    command = rf"install --directory {owner} --mode=0700 ([/\w ]+?) *(?:\\\\)?$"
    (made,) = re.findall(command, DOCKERFILE, re.MULTILINE)
    ours = [one for one in STACK["services"].values() if one["image"].startswith("throughline")]
    mounted = {volume.split(":")[1] for one in ours for volume in one.get("volumes", [])}
    assert mounted and mounted <= set(made.split())
    assert re.search(r"^USER throughline$", DOCKERFILE, re.MULTILINE), "not as root"
    assert "chown" not in DOCKERFILE, "what runs there cannot change its code, which is root's"


def test_the_image_is_built_from_the_lock():
    assert "uv sync --quiet --locked --no-dev --group stack" in DOCKERFILE
    (installed,) = re.findall("pip install (.*)", DOCKERFILE)
    assert installed.startswith("--quiet --no-cache-dir uv=="), "everything else comes from uv.lock"


@pytest.mark.integration
def test_nothing_goes_into_the_image_but_code_and_what_it_reads(tmp_path):
    """By Docker's own client, with secrets and results in every place where they could be."""
    tracked = git(ROOT, "ls-files").split()
    write_files(tmp_path, dict.fromkeys([*tracked, *PLANTED.split()], "SECRET"))
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = exclude_paths(str(tmp_path), [line for line in lines if line and line[0] != "#"])
    context = {path for path in sent if (tmp_path / path).is_file()}
    code = re.compile(r"(throughline|tasks|flows|whowaits/src)/.*\.py")
    needed = {name for name in tracked if code.fullmatch(name)} | {*NEEDED.split()}
    assert context - {"Dockerfile", ".dockerignore"} == needed, "these are sent, and not copied"


def test_a_store_without_a_key_does_not_start(tmp_path, monkeypatch):
    for name in store.KEY:
        monkeypatch.setenv(name, " " if name == store.KEY[-1] else "secret")
    with pytest.raises(typer.BadParameter, match=f"^{store.KEY[-1]} is empty or not set"):
        store.command(tmp_path / "objects")
    assert not (tmp_path / "objects").exists()


@pytest.mark.parametrize(
    ("option", "above"), [("postgres-port", 0), ("s3-port", 0), ("s3-port", 10_003)]
)
def test_a_port_that_is_taken_is_named_with_its_option(tmp_path, option, above):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {option.replace("-", "_"): taken.getsockname()[1] - above}
        refused = pytest.raises(ServiceFailed, match=f"is taken, .* another with --{option}")
        with refused, stores(load_stack(tmp_path / "stack", **ports)):
            pytest.fail("the stores were started")


@pytest.mark.parametrize("workers", [0, 1])
def test_without_workers_or_dask_nothing_is_started(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    opened, before = load_stack(tmp_path / "stack"), psutil.Process().children()
    refused = pytest.raises(ServiceFailed, match="Dask is not installed")
    cluster, service = clusters.dask_cluster(opened, workers), clusters.input_service(opened, 0)
    with refused if workers else nullcontext(), service, cluster:
        assert not workers and psutil.Process().children() == before


STORE = (sys.executable, "-m", "infra.local", "store", "--")
READ = """
from throughline.shared.object_store import open_store
print(open_store("s3://data/raw").read("data.npz") == open("source/data.npz", "rb").read())
"""


@pytest.mark.slow
def test_a_command_finds_in_the_store_what_the_one_before_has_put_there(array_file, tmp_path):
    folder = make_project(tmp_path / "project", array_file)
    assert "there is no program dcv" in run(folder, *STORE, "dcv", "status", code=2)
    script = '"$0" -m tasks.upload source s3://data/raw; echo at $AWS_ENDPOINT_URL; exit 3'
    said = run(folder, *STORE, "sh", "-c", script, sys.executable, code=3)
    # It has ended as its command did, and its secret is in nothing that it prints.
    assert re.search(r"^at http://127\.0\.0\.1:\d+$", said, re.MULTILINE)
    settings = folder / ".throughline" / "store" / "settings.json"
    assert json.loads(settings.read_text())["s3_secret"] not in said

    script = '"$0" -c "$1" > same; umask > mask; sleep 600 & echo $! > pid; wait'
    command = [*STORE, "sh", "-c", script, sys.executable, READ]
    process = subprocess.Popen(command, cwd=folder, env=environment(folder), umask=0o022)
    wait_for(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
    before = settings.read_text()
    up = (sys.executable, "-m", "infra.local", "up", "--home", ".throughline/store")
    assert "is running; stop it first" in run(folder, *up, "--s3-port", "9000", code=2)
    assert settings.read_text() == before, "what is refused changes no port"
    process.terminate()
    process.wait(60)
    assert (folder / "same").read_text() == "True\n"
    assert int((folder / "mask").read_text(), 8) == 0o022
    wait_for(lambda: not psutil.pid_exists(int((folder / "pid").read_text())))


@pytest.mark.integration
def test_settings_are_written_only_when_they_change(tmp_path):
    file = load_stack(tmp_path / "stack").folder / SETTINGS_FILE
    before = file.stat()
    assert stat.S_IMODE(before.st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) & 0o066 == 0
    load_stack(tmp_path / "stack")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    load_stack(tmp_path / "stack", s3_port=9000)
    assert json.loads(file.read_text())["s3_port"] == 9000


@pytest.mark.integration
def test_a_disk_that_takes_nothing_leaves_the_secrets_as_they_were(tmp_path):
    file = load_stack(tmp_path / "stack").folder / SETTINGS_FILE
    before, limits = file.read_text(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError):
            load_stack(tmp_path / "stack", s3_port=9000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == before and [*file.parent.iterdir()] == [file]


@pytest.mark.integration
@pytest.mark.parametrize("content", ["{", '{"unknown": 1}'])
def test_settings_that_cannot_be_read_are_never_replaced(tmp_path, content):
    (tmp_path / SETTINGS_FILE).write_text(content)
    with pytest.raises(ServiceFailed, match="put it back from a backup"):
        load_stack(tmp_path)
    assert (tmp_path / SETTINGS_FILE).read_text() == content


@pytest.mark.slow
def test_a_first_start_that_was_killed_is_made_good_by_the_next():
    need("postgres")
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        Path(folder).chmod(0o755)
        opened = load_stack(Path(folder) / "stack", postgres_port=port)
        partial = opened.folder / "postgres.partial"
        write_files(partial, {"base/1": "", "PG_VERSION": "15\n"})
        with postgres.postgres(opened):
            asked = ("psql", "-d", "postgres", "-Atc", "SELECT datname FROM pg_database")
            names = postgres._run_checked(opened, *asked).split()
        assert set(names) == {*postgres.DATABASES, "postgres", "template0", "template1"}


def dry_run(*words: str) -> subprocess.CompletedProcess[str]:
    """What `make` would do, without what a make around the tests hands to this one."""
    command, path = ["make", "--dry-run", *words], {"PATH": os.environ["PATH"]}
    options = {"cwd": ROOT, "env": path, "capture_output": True, "text": True}
    return subprocess.run(command, check=False, **options)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["STORE=s3"], ""),
        (["DATA=photos", "PHOTOS=."], ""),
        (["STORE=s3", "DATA=photos"], "STORE can only be s3"),
        (["DATA=photos", "BUDGET=small"], "there is no demo of DATA=photos BUDGET=small"),
        (["PHOTOS=mine"], "PHOTOS=DIR goes with DATA=photos"),
    ],
)
def test_a_demo_of_what_there_is_not_is_refused(options, said):
    done = dry_run("demo", *options)
    assert bool(done.returncode) is bool(said) and said in done.stderr
    assert dry_run("ui", *options).returncode == 0, "it takes no notice of them"
    if options == ["STORE=s3"]:
        (uploaded,) = re.findall(r"tasks\.upload \S+ (s3://\S+);", done.stdout)
        assert f"--set data.path={uploaded} " in done.stdout
