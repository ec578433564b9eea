"""The password of `make ui`, and how flows of the same user find the running servers."""

import os
import subprocess

import pytest
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_UI_URL,
    temporary_settings,
)

from flows.servers.credentials import (
    ENVIRONMENT,
    exclusive,
    exports,
    find_running,
    load_credentials,
    published_environment,
    use_running_servers,
)
from flows.ui import Endpoints, print_urls, take_from_others
from tests.support.skips import need
from throughline.shared.errors import ServiceFailed

RUNNING = {
    "PREFECT_API_URL": "http://127.0.0.1:4200/api",
    "PREFECT_API_AUTH_STRING": "throughline:secret",
    "PREFECT_UI_URL": "http://127.0.0.1:4200",
    "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000",
    "MLFLOW_TRACKING_PASSWORD": 'it\'s a "secret" $HOME',
}


@pytest.fixture(autouse=True)
def _no_servers_of_the_users(monkeypatch):
    for key in RUNNING:
        monkeypatch.setenv(key, "")  # so that what a test sets goes with the test
        monkeypatch.delenv(key)


def test_the_password_stays_is_its_owners_alone_and_both_servers_ask_clients_for_it(tmp_path):
    credentials, again = load_credentials(tmp_path), load_credentials(tmp_path)
    assert credentials.keys == again.keys and len(credentials.keys.password) == 32
    assert load_credentials(tmp_path / "other").keys != credentials.keys
    folder = tmp_path / ".throughline" / "ui"
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
    clients, password = credentials.clients, credentials.keys.password
    asked = credentials.server["PREFECT_SERVER_API_AUTH_STRING"]
    assert asked == clients["PREFECT_API_AUTH_STRING"] == f"throughline:{password}"
    for name, value in (("USERNAME", "throughline"), ("PASSWORD", password)):
        asked = credentials.tracking[f"MLFLOW_AUTH_ADMIN_{name}"]
        assert asked == clients[f"MLFLOW_TRACKING_{name}"] == value


@pytest.mark.parametrize("content", ["{", "[]", '{"passwort": 1}'])
def test_a_damaged_password_is_drawn_again_and_mlflows_users_with_it(tmp_path, content):
    credentials = load_credentials(tmp_path)
    (credentials.folder / "secrets.json").write_text(content)
    (credentials.folder / "mlflow-users.db").write_text("users with the password of before")
    assert load_credentials(tmp_path).keys != credentials.keys
    assert not (credentials.folder / "mlflow-users.db").exists()
    assert load_credentials(tmp_path).keys == load_credentials(tmp_path).keys


def test_running_servers_are_found_while_they_run_and_no_longer(tmp_path):
    assert find_running(tmp_path) == {}
    refused = pytest.raises(ServiceFailed, match="run already")
    with exclusive(tmp_path):
        assert find_running(tmp_path) == {}, "they are starting"
        with refused, exclusive(tmp_path):
            pytest.fail("they were started twice")
        with published_environment(tmp_path, RUNNING | {"PATH": "/x"}) as file:
            assert find_running(tmp_path) == RUNNING
            left = file.read_text()
            assert file.stat().st_mode & 0o777 == 0o600
        assert find_running(tmp_path) == {}
    file.write_text(left)
    assert find_running(tmp_path) == {}, "left by servers that were killed"
    with exclusive(tmp_path):
        assert find_running(tmp_path) == {}, "and of no use while others start"


def test_servers_of_another_user_are_not_trusted(tmp_path):
    need("root")
    with exclusive(tmp_path), published_environment(tmp_path, RUNNING) as file:
        os.chown(file, 65534, 65534)
        assert find_running(tmp_path) == {}


@pytest.mark.integration
def test_a_shell_reads_what_is_published_as_it_was_meant(tmp_path):
    (tmp_path / ENVIRONMENT).write_text(exports(RUNNING))
    command = f'. {tmp_path / ENVIRONMENT}; printf %s "$MLFLOW_TRACKING_PASSWORD"'
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert said == RUNNING["MLFLOW_TRACKING_PASSWORD"]


def test_flows_join_the_running_servers_unless_the_user_has_named_some(tmp_path, monkeypatch):
    unset = {PREFECT_API_URL, PREFECT_API_AUTH_STRING, PREFECT_UI_URL}
    settings = temporary_settings(restore_defaults=unset)
    with settings, exclusive(tmp_path), published_environment(tmp_path, RUNNING):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
        with use_running_servers(tmp_path):
            assert PREFECT_API_URL.value() == RUNNING["PREFECT_API_URL"]
            assert os.environ["MLFLOW_TRACKING_URI"] == "http://elsewhere"
            assert "MLFLOW_TRACKING_PASSWORD" not in os.environ, "it is not for elsewhere"
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        elsewhere = temporary_settings({PREFECT_API_URL: "http://elsewhere/api"})
        with elsewhere, use_running_servers(tmp_path):
            assert PREFECT_API_URL.value() == "http://elsewhere/api"
            assert os.environ.pop("MLFLOW_TRACKING_URI") == RUNNING["MLFLOW_TRACKING_URI"]
        with use_running_servers(tmp_path):
            assert PREFECT_API_URL.value() == RUNNING["PREFECT_API_URL"]
            assert PREFECT_API_AUTH_STRING.value() == RUNNING["PREFECT_API_AUTH_STRING"]
            assert {key: os.environ[key] for key in RUNNING} == RUNNING


def test_runs_of_the_ui_keep_to_its_mlflow_and_its_page_s_words_are_explained(monkeypatch, capsys):
    endpoints = Endpoints(prefect_port=1, mlflow_port=2)
    own = {"MLFLOW_TRACKING_URI": endpoints.mlflow, "MLFLOW_REGISTRY_URI": endpoints.mlflow}
    assert own.items() <= endpoints.environment.items()
    for value, said in (("true", True), ("false", False)):
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", value)
        print_urls(endpoints, 1)
        told = "usage data is collected; here that is switched off" in capsys.readouterr().out
        assert told is said


def test_databases_that_earlier_runs_left_readable_are_taken_from_others(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    for name in ("prefect", "mlartifacts", ".throughline/logs"):
        (tmp_path / name).mkdir(parents=True, mode=0o755)
    for name in ("mlflow.db", "mlflow.db-wal", "params.yaml"):
        (tmp_path / name).touch(mode=0o644)
    take_from_others(tmp_path)
    take_from_others(tmp_path / "empty")
    expected = dict.fromkeys(("prefect", "mlartifacts", ".throughline/logs"), 0o700)
    expected |= {"mlflow.db": 0o600, "params.yaml": 0o644}
    assert {name: (tmp_path / name).stat().st_mode & 0o777 for name in expected} == expected
