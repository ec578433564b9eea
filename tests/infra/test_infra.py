"""The stack as containers, checked statically: pinned, healthy before it is depended on, no secret,
nothing beyond loopback; Kubernetes' schemas.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

INFRA = Path(__file__).parents[2] / "infra"
DOCKERFILE = (INFRA / "Dockerfile").read_text()
TEXT = (INFRA / "compose.yaml").read_text()
STACK = YAML(typ="safe").load(TEXT)
SECRETS = {
    "PREFECT_AUTH",
    "MLFLOW_PASSWORD",
    "MLFLOW_SECRET",
    "POSTGRES_PASSWORD",
    "S3_KEY",
    "S3_SECRET",
}
MANIFESTS = {
    f"{path.relative_to(INFRA / 'kubernetes')}: {it['kind']} {it['metadata'].get('name', '')}": it
    for path in sorted((INFRA / "kubernetes").rglob("*.yaml"))
    for it in YAML(typ="safe").load_all(path.read_text())
}
PODS = {
    name: found["spec"]["template"]["spec"]
    for name, found in MANIFESTS.items()
    if "template" in found.get("spec", {})
}
KUBERNETES = "1.34.1"
POLICIES = [found for found in MANIFESTS.values() if found["kind"] == "NetworkPolicy"]
PLANTED = (
    *(
        "infra/.env",
        "infra/.env.bak",
        "infra/env",
        ".env",
        "tasks/.env",
        "flows/.env.py",
        "throughline/data/.hidden/x.py",
    ),
    *(
        ".dvc/config.local",
        ".dvc/cache/files/md5/00/1",
        ".dvc/tmp/rwlock",
        ".git/config",
        ".netrc",
        ".ssh/id_ed25519",
        ".venv/bin/x.py",
    ),
    *(
        ".throughline/ui/secrets.json",
        ".throughline/stack/settings.json",
        ".throughline/workspaces/x/tasks/y.py",
    ),
    *(
        "data/raw/x.npz",
        "runs/naive/model.keras",
        "report/index.html",
        "mlartifacts/0/x/artifacts/model.keras",
        "mlflow.db",
        "mlflow.db-wal",
    ),
    *(
        "infra/kubernetes/secret.yaml",
        "infra/local/settings.json",
        "secrets.py",
        "backup/settings.json",
        "backup/mlflow_auth.dump",
    ),
    *(
        "throughline/plan/credentials.json",
        "throughline/shared/key.pem",
        "flows/secrets.json",
        "tasks/__pycache__/x.cpython-311.pyc",
        "id_rsa",
        "kaggle.json",
    ),
)


@pytest.mark.parametrize("name", STACK["services"])
def test_a_service_is_pinned_healthy_and_not_exposed(name):
    service = STACK["services"][name]
    assert re.search(r":\d+\.\d+", service["image"])
    assert service["healthcheck"]["test"]
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
    needed = service.get("depends_on", {})
    assert all(condition == {"condition": "service_healthy"} for condition in needed.values())
    assert set(needed) <= set(STACK["services"])
    assert (service["read_only"], service["cap_drop"], service["security_opt"]) == (
        True,
        ["ALL"],
        ["no-new-privileges:true"],
    )
    assert set(service["networks"]) <= set(STACK["networks"])
    mounted = [volume.partition(":")[0] for volume in service.get("volumes", [])]
    assert all(volume in STACK["volumes"] or (INFRA / volume).exists() for volume in mounted)


def test_every_secret_comes_from_the_environment_and_none_has_a_default():
    named = re.findall(r"(?<!\$)\$\{([^}]*)\}", TEXT)
    assert named
    assert all(re.fullmatch(r"[A-Z0-9_]+:\?.+", text) for text in named), (
        "compose names what is missing"
    )
    assert {text.partition(":")[0] for text in named} == SECRETS


def test_servers_that_others_reach_ask_who_is_there():
    prefect = STACK["services"]["prefect"]["environment"]
    assert (
        "PREFECT_SERVER_API_AUTH_STRING" in prefect
        and prefect["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    )
    assert all(
        re.fullmatch(r"http://(127\.0\.0\.1|localhost):4200", origin)
        for origin in prefect["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    )
    assert "--app-name basic-auth" in STACK["services"]["mlflow"]["command"]


def test_the_service_that_runs_anybodys_graphs_reaches_neither_the_stores_nor_the_world():
    for name in ("dispatcher", "input-worker-1", "input-worker-2"):
        assert STACK["services"][name]["networks"] == ["input"]
    assert STACK["networks"]["input"]["internal"] and STACK["networks"]["stores"]["internal"]
    assert {
        name for name, service in STACK["services"].items() if "stores" in service["networks"]
    } == {*("postgres", "store", "prefect", "mlflow", "worker", "worker-gpu")}


def test_volumes_belong_to_the_user_that_writes_them():
    """A new volume takes the owner of the folder that it is mounted at in the image."""
    made = re.search(
        r"install --directory --owner=throughline --group=throughline --mode=0700 ([/\w ]+?)"
        r" *(?:\\\\)?$",
        DOCKERFILE,
        re.MULTILINE,
    )
    assert made
    mounted = {
        volume.split(":")[1]
        for service in STACK["services"].values()
        if service["image"].startswith("throughline")
        for volume in service.get("volumes", [])
    }
    assert mounted and mounted <= set(made[1].split())
    assert "--chown" not in DOCKERFILE and "chown" not in DOCKERFILE, (
        "code in the image is root's: what runs there cannot change it"
    )


def test_the_image_is_built_from_the_lock():
    text = DOCKERFILE
    assert (
        re.search(r"^ARG BASE=python:3\.11\.\d+-", text, re.MULTILINE) and "FROM ${BASE}\n" in text
    )
    assert "uv sync --quiet --locked --no-dev --group stack" in text
    assert "pip install" not in text.replace("pip install --quiet --no-cache-dir uv==", ""), (
        "everything else comes from uv.lock"
    )
    assert re.search(r"^USER throughline$", text, re.MULTILINE), "not as root"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_kubernetes_expects(name):
    metadata = MANIFESTS[name]["metadata"]
    named = {"name": metadata.get("generateName", ""), **metadata}  # the checker asks for one
    kubernetes_validate.validate({**MANIFESTS[name], "metadata": named}, KUBERNETES, strict=True)
    assert (
        name.startswith("namespace.yaml: Namespace")
        or MANIFESTS[name]["metadata"]["namespace"] == "throughline"
    )


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_pinned_unprivileged_and_gets_its_secrets_from_one_place(name):
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert re.search(r":\d+\.\d+", container["image"])
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/tmp" in mounted and (
            container["name"] == "postgres" or "/home/throughline" in mounted
        ), "what it may write"
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
        for variable in container.get("env", []):
            kept = variable.get("valueFrom", {}).get(
                "secretKeyRef", {"name": "throughline", "key": "S3_KEY"}
            )
            assert kept["name"] == "throughline" and kept["key"] in SECRETS
            assert (
                not re.search(r"PASSWORD|SECRET|AUTH_STRING", variable["name"])
                or "valueFrom" in variable
            )


def test_services_find_their_pods_and_volumes_are_claimed():
    labels = [
        found["spec"]["template"]["metadata"]["labels"]
        for found in MANIFESTS.values()
        if "template" in found.get("spec", {})
    ]
    services = [found for found in MANIFESTS.values() if found["kind"] == "Service"]
    assert all(service["spec"]["selector"] in labels for service in services)
    claims = {
        found["metadata"]["name"]
        for found in MANIFESTS.values()
        if found["kind"] == "PersistentVolumeClaim"
    }
    named = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in PODS.values()
        for volume in pod.get("volumes", [])
        if "persistentVolumeClaim" in volume
    }
    assert named == claims
    asked = [
        container["resources"]["limits"].get("nvidia.com/gpu")
        for container in PODS["jobs/training-gpu.yaml: Job "]["containers"]
    ]
    assert asked == [1]


def test_both_kinds_of_deployment_start_the_same_programs():
    def programs(text: str) -> set[str]:
        return set(
            re.findall(
                r"infra\.store|prefect server|flows\.servers\.tracking_server|flows\.worker|service"
                r" (?:dispatcher|worker)",
                text,
            )
        )

    commands = " ".join(str(service.get("command", "")) for service in STACK["services"].values())
    arguments = " ".join(
        " ".join(container.get("args", []))
        for pod in PODS.values()
        for container in pod["containers"]
    )
    assert programs(commands) == programs(arguments) and len(programs(commands)) == 6


def test_the_dispatcher_keeps_its_journal_on_a_volume_that_stays():
    (pod,) = (pod for name, pod in PODS.items() if name.endswith("Deployment dispatcher"))
    (container,) = pod["containers"]
    (folder,) = (
        one.partition("=")[2] for one in container["args"] if one.startswith("--work-dir=")
    )
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == folder)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    assert "persistentVolumeClaim" in volume
    service = STACK["services"]["dispatcher"]
    assert f"--work-dir {folder}" in service["command"]
    assert service["volumes"] == [f"journal:{folder}"] and "journal" in STACK["volumes"]


def test_the_namespace_takes_restricted_pods_only():
    labels = MANIFESTS["namespace.yaml: Namespace throughline"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def arrows(direction: str, peers: str) -> set[tuple[str, str, int]]:
    """(from, to, port) of the rules of every policy in a direction; rules about other things than
    pods are left out.
    """
    found = set()
    for policy in POLICIES:
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get("app")
        for rule in policy["spec"].get(direction, []):
            others = [
                peer["podSelector"]["matchLabels"]["app"]
                for peer in rule[peers]
                if "podSelector" in peer
            ]
            pairs = [(other, own) if direction == "ingress" else (own, other) for other in others]
            found |= {(*pair, port["port"]) for pair in pairs for port in rule["ports"]}
    return found


def test_network_policies_agree_from_both_sides_and_open_the_store_at_its_s3_port_alone():
    assert arrows("ingress", "from") == arrows("egress", "to") != set()
    assert {arrow for arrow in arrows("ingress", "from") if "store" in arrow} == {
        ("mlflow", "store", 8333),
        ("worker", "store", 8333),
    }
    assert not {
        arrow for arrow in arrows("ingress", "from") if arrow[0] in ("dispatcher", "input-worker")
    } - {("dispatcher", "input-worker", 5051), ("input-worker", "dispatcher", 5050)}
    everybody = [policy["spec"] for policy in POLICIES if not policy["spec"]["podSelector"]]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in everybody, (
        "what no arrow allows is refused"
    )
    apps = {
        found["spec"]["template"]["metadata"]["labels"]["app"]
        for found in MANIFESTS.values()
        if "template" in found.get("spec", {})
    }
    assert {policy["metadata"]["name"] for policy in POLICIES} == apps | {"nobody", "name-service"}


def test_nothing_goes_into_the_image_but_code_and_what_it_reads(tmp_path):
    """The project as git has it, with secrets and results in every place where they could be; the
    list is made by Docker's own client.
    """
    from docker.utils.build import exclude_paths

    tracked = subprocess.run(
        ["git", "ls-files"], cwd=INFRA.parent, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in (*tracked, *PLANTED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("SECRET")
    patterns = [
        line
        for line in (INFRA.parent / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    context = {
        path for path in exclude_paths(str(tmp_path), patterns) if (tmp_path / path).is_file()
    }
    needed = {
        name
        for name in tracked
        if re.fullmatch(r"(throughline|tasks|flows|whowaits/src)/.*\.py", name)
    }
    needed |= {
        "LICENSE",
        "pyproject.toml",
        "uv.lock",
        "whowaits/README.md",
        "whowaits/pyproject.toml",
        "flows/orchestration/job-template.json",
        "infra/store.py",
        "infra/mlflow-auth.ini",
    }
    sent_and_not_copied = {"Dockerfile", ".dockerignore"}  # the builder needs them
    assert context - sent_and_not_copied == needed
