"""The stack as containers, checked statically: pinned, healthy before it is depended on, no secret, nothing beyond loopback; Kubernetes' schemas."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

INFRA = Path(__file__).parent.parent / "infra"
TEXT = (INFRA / "compose.yaml").read_text()
STACK = YAML(typ="safe").load(TEXT)
SECRETS = {"PREFECT_AUTH", "MLFLOW_PASSWORD", "MLFLOW_SECRET", "POSTGRES_PASSWORD", "S3_KEY", "S3_SECRET"}
MANIFESTS = {
    f"{path.relative_to(INFRA / 'kubernetes')}: {found['kind']} {found['metadata'].get('name', '')}": found
    for path in sorted((INFRA / "kubernetes").rglob("*.yaml"))
    for found in YAML(typ="safe").load_all(path.read_text())
}
PODS = {name: found["spec"]["template"]["spec"] for name, found in MANIFESTS.items() if "template" in found.get("spec", {})}
KUBERNETES = "1.34.1"


@pytest.mark.parametrize("name", STACK["services"])
def test_a_service_is_pinned_healthy_and_not_exposed(name):
    service = STACK["services"][name]
    assert re.search(r":\d+\.\d+", service["image"])
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
    assert {text.partition(":")[0] for text in named} == SECRETS


def test_servers_that_others_reach_ask_who_is_there():
    assert "PREFECT_SERVER_API_AUTH_STRING" in STACK["services"]["prefect"]["environment"]
    assert "--app-name basic-auth" in STACK["services"]["mlflow"]["command"]


def test_the_image_is_built_from_the_lock():
    text = (INFRA / "Dockerfile").read_text()
    assert re.search(r"^FROM python:3\.11\.\d+-", text, re.MULTILINE)
    assert "uv sync --quiet --locked --no-dev --group stack" in text
    assert "pip install" not in text.replace("pip install --quiet --no-cache-dir uv==", ""), "everything else comes from uv.lock"
    assert re.search(r"^USER throughline$", text, re.MULTILINE), "not as root"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_kubernetes_expects(name):
    named = {"name": MANIFESTS[name]["metadata"].get("generateName", "")} | MANIFESTS[name]["metadata"]  # the checker asks for one
    kubernetes_validate.validate({**MANIFESTS[name], "metadata": named}, KUBERNETES, strict=True)
    assert name.startswith("namespace.yaml: Namespace") or MANIFESTS[name]["metadata"]["namespace"] == "throughline"


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_pinned_unprivileged_and_gets_its_secrets_from_one_place(name):
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert re.search(r":\d+\.\d+", container["image"])
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
        for variable in container.get("env", []):
            kept = variable.get("valueFrom", {}).get("secretKeyRef", {"name": "throughline", "key": "S3_KEY"})
            assert kept["name"] == "throughline" and kept["key"] in SECRETS
            assert not re.search(r"PASSWORD|SECRET|AUTH_STRING", variable["name"]) or "valueFrom" in variable


def test_services_find_their_pods_and_volumes_are_claimed():
    labels = [found["spec"]["template"]["metadata"]["labels"] for found in MANIFESTS.values() if "template" in found.get("spec", {})]
    services = [found for found in MANIFESTS.values() if found["kind"] == "Service"]
    assert all(service["spec"]["selector"] in labels for service in services)
    claims = {found["metadata"]["name"] for found in MANIFESTS.values() if found["kind"] == "PersistentVolumeClaim"}
    named = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in PODS.values()
        for volume in pod.get("volumes", [])
        if "persistentVolumeClaim" in volume
    }
    assert named == claims
    asked = [container["resources"]["limits"].get("nvidia.com/gpu") for container in PODS["jobs/training-gpu.yaml: Job "]["containers"]]
    assert asked == [1]


def test_both_kinds_of_deployment_start_the_same_programs():
    def programs(text: str) -> set[str]:
        return set(re.findall(r"weed|prefect server|mlflow server|prefect worker|service (?:dispatcher|worker)", text))

    commands = " ".join(str(service.get("command", "")) for service in STACK["services"].values())
    arguments = " ".join(" ".join(container.get("args", [])) for pod in PODS.values() for container in pod["containers"])
    assert programs(commands) == programs(arguments) and len(programs(commands)) == 6
