"""The stack as containers, checked statically: pinned, healthy before it is depended on, no secret, nothing beyond loopback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

INFRA = Path(__file__).parent.parent / "infra"
TEXT = (INFRA / "compose.yaml").read_text()
STACK = YAML(typ="safe").load(TEXT)


@pytest.mark.parametrize("name", STACK["services"])
def test_a_service_is_pinned_healthy_and_not_exposed(name):
    service = STACK["services"][name]
    assert re.search(r":[\w.\-]+\d", service["image"]) or service["build"]["dockerfile"] == "infra/Dockerfile"
    assert service["healthcheck"]["test"]
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
    needed = service.get("depends_on", {})
    assert all(condition == {"condition": "service_healthy"} for condition in needed.values())
    assert set(needed) <= set(STACK["services"])
    mounted = [volume.partition(":")[0] for volume in service.get("volumes", [])]
    assert all(volume in STACK["volumes"] or (INFRA / volume).exists() for volume in mounted)


def test_every_secret_comes_from_the_environment_and_none_has_a_default():
    named = re.findall(r"(?<!\$)\$\{([^}]*)\}", TEXT)
    assert named
    assert all(re.fullmatch(r"[A-Z0-9_]+:\?.+", text) for text in named), "compose names what is missing"
    assert {text.partition(":")[0] for text in named} == {
        "PREFECT_AUTH",
        "MLFLOW_PASSWORD",
        "MLFLOW_SECRET",
        "POSTGRES_PASSWORD",
        "S3_KEY",
        "S3_SECRET",
    }


def test_servers_that_others_reach_ask_who_is_there():
    assert "PREFECT_SERVER_API_AUTH_STRING" in STACK["services"]["prefect"]["environment"]
    assert "--app-name basic-auth" in STACK["services"]["mlflow"]["command"]


def test_the_image_is_built_from_the_lock():
    text = (INFRA / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.11\.\d+-", text, re.MULTILINE)
    assert "uv sync --quiet --locked" in text
    assert re.search(r"^USER throughline$", text, re.MULTILINE), "not as root"
