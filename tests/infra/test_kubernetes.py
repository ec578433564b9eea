"""The manifests agree with the programs, compose.yaml and their README; no cluster is asked."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from prefect.settings import get_current_settings
from ruamel.yaml import YAML

from infra.local.clusters import ALLOWED_FAILURES
from tests.support.command_lines import parse
from tests.support.project import ROOT
from tests.support.worktrees import cheap_project, git
from throughline.plan.clusters import FIRST_PORT
from throughline.shared.dask_engine import ATTEMPTS

pytestmark = [
    pytest.mark.integration,  # kubectl renders, git clones
    # MLflow warns about itself when its command line is imported.
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]
FOLDER = ROOT / "infra" / "kubernetes"
KUBECTL = Path(sys.executable).with_name("kubectl")  # of the locked packages
BASE, INPUT, DASK, HOSTS = "base", "overlays/input-service", "overlays/dask", "overlays/multi-host"
JOBSET, KUEUE, STORE = "overlays/jobset", "overlays/kueue", "overlays/object-storage"
OVERLAYS = sorted(f"overlays/{path.name}" for path in (FOLDER / "overlays").iterdir())
EVERY_FOLDER = pytest.mark.parametrize("folder", [BASE, *OVERLAYS])
COMPOSE = YAML(typ="safe").load((ROOT / "infra" / "compose.yaml").read_text())
README = (FOLDER / "README.md").read_text()
OPERATING = (ROOT / "docs" / "operating.md").read_text()
CLONE = (FOLDER / "clone.yaml").read_text()
(CLONING,) = YAML(typ="safe").load(CLONE)["spec"]["containers"]
CUSTOM_SCHEMAS = json.loads((ROOT / "tests" / "infra" / "custom-resources.json").read_text())
NOTHING_MORE = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
NOTHING_MORE |= {"capabilities": {"drop": ["ALL"]}}
ADDRESS = re.compile(r"(?<![\w.$)-])(?:[a-z][\w-]*\.)?([a-z][a-z0-9-]*):(\d{2,5})\b")
Manifest = dict[str, Any]


@cache
def render(folder: str) -> list[Manifest]:
    """What `kubectl apply -k` would apply of a folder of infra/kubernetes, in its order."""
    command = [KUBECTL, "kustomize", FOLDER / folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return list(YAML(typ="safe").load_all(done.stdout))


def of_kind(folder: str, kind: str) -> dict[str, Manifest]:
    """The manifests of a kind by their names."""
    return {one["metadata"]["name"]: one for one in render(folder) if one["kind"] == kind}


def pods_of(spec: Manifest) -> SimpleNamespace:
    """The pods of a template in the spec of a Job, a Deployment or a StatefulSet."""
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    (container,) = [*pod.get("initContainers", []), *pod["containers"]]
    own = {"spec": spec, "pod": pod, "container": container, "labels": labels}
    own["app"] = labels["app"]  # by which services and policies select them
    own["command"] = [*container.get("command", []), *container.get("args", [])]
    own["ports"] = {port["containerPort"] for port in container.get("ports", [])}
    return SimpleNamespace(**own)


@cache
def workloads(folder: str) -> dict[str, SimpleNamespace]:
    """The pods that manifests start, or hold a template of, by kind and name."""
    found = {}
    for manifest in render(folder):
        name, spec = f"{manifest['kind']} {manifest['metadata']['name']}", manifest.get("spec", {})
        specs = {name: spec.get("jobTemplate", {}).get("spec", spec)}
        for part in spec.get("replicatedJobs", []):
            specs[f"{name} {part['name']}"] = part["template"]["spec"]
        found |= {one: pods_of(own) for one, own in specs.items() if "template" in own}
    return found


def find_arrows(folder: str, direction: str) -> set[tuple[str, str, int | None]]:
    """From which app to which, at what port (None: any), as rules of `ingress` or `egress` say."""
    arrows = set()
    for policy in of_kind(folder, "NetworkPolicy").values():
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get("app")
        for rule in policy["spec"].get(direction, []):
            peers = rule["from" if direction == "ingress" else "to"]
            for pod in [peer["podSelector"] for peer in peers if "podSelector" in peer]:
                other = pod["matchLabels"]["app"]
                pair = (other, own) if direction == "ingress" else (own, other)
                arrows |= {(*pair, it.get("port")) for it in rule.get("ports", [{}])}
    return arrows


def find_listening(words: list[str]) -> set[int]:
    """The ports at which a program listens, by its command line; Postgres has none."""
    options = parse(words) if words else {"port": 5432}
    if options.get("healthcheck"):
        return {get_current_settings().worker.webserver.port}
    if "hosts" in options:
        return {FIRST_PORT}
    port = options.get("worker_port") or options.get("port")
    return {int(port)} if port else set()


@pytest.mark.slow
@EVERY_FOLDER
def test_programs_take_their_commands_and_listen_at_the_ports_that_are_opened(folder):
    for name, one in workloads(folder).items():
        assert find_listening(one.command) == one.ports, name
        if one.command[2:3] == ["tasks.cluster"]:
            parse(parse(one.command)["command"])


@EVERY_FOLDER
def test_services_and_probes_ask_ports_that_are_opened(folder):
    for name, service in of_kind(folder, "Service").items():
        wanted = service["spec"]["selector"].items()
        selected = [one for one in workloads(folder).values() if wanted <= one.labels.items()]
        asked = {port.get("targetPort", port["port"]) for port in service["spec"]["ports"]}
        assert selected and all(asked <= one.ports for one in selected), name
    for name, one in workloads(folder).items():
        probes = [probe for key, probe in one.container.items() if key.endswith("Probe")]
        named = [probe.get("tcpSocket") or probe.get("httpGet") or {} for probe in probes]
        assert {it["port"] for it in named if it} <= one.ports, name


@EVERY_FOLDER
def test_addresses_are_of_services_that_policies_let_a_pod_reach(folder):
    arrows = find_arrows(folder, "ingress")
    services = of_kind(folder, "Service") | of_kind(INPUT, "Service")  # the worker may have that
    there = {(name, it["port"]) for name, one in services.items() for it in one["spec"]["ports"]}
    for name, one in workloads(folder).items():
        values = {it["name"]: it["value"] for it in one.container.get("env", []) if "value" in it}
        database = f"{values.get('PGHOST', 'localhost')}:5432"
        texts = [*one.command, *values.values(), database]
        for host, port in {found for text in texts for found in ADDRESS.findall(text)}:
            if host != "localhost":
                assert (host, int(port)) in there, name
                assert host == one.app or (one.app, host, int(port)) in arrows, (name, host)


@EVERY_FOLDER
def test_every_pod_has_a_policy_and_arrows_are_allowed_on_both_sides(folder):
    assert find_arrows(folder, "ingress") == find_arrows(folder, "egress")
    policies = of_kind(folder, "NetworkPolicy")
    nobody = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies["nobody"]["spec"] == nobody, "what no arrow allows is refused"
    for one in workloads(folder).values():
        assert policies[one.app]["spec"]["podSelector"] == {"matchLabels": {"app": one.app}}
    kinds = [manifest["kind"] for manifest in render(folder)]
    assert "NetworkPolicy" not in kinds[kinds.index("Deployment") :], "policies come before pods"


@EVERY_FOLDER
def test_a_pod_has_a_pinned_image_documented_secrets_and_no_more_rights(folder):
    (secret,) = re.findall(r"create secret generic (\S+) +--from", README)
    documented = set(re.findall(r"(?:'|\\n)([A-Z0-9_]+)=", OPERATING))
    pinned = {service["image"] for service in COMPOSE["services"].values()}
    labels = of_kind(folder, "Namespace")["throughline"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, one in workloads(folder).items():
        security, container = one.pod["securityContext"], one.container
        assert security["runAsNonRoot"] is True and security["runAsUser"], name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert one.pod["automountServiceAccountToken"] is False, name
        assert container["securityContext"] == NOTHING_MORE, name
        assert container["image"] in pinned, name
        limits = container["resources"]["limits"]
        assert container["image"].endswith("-gpu") == ("nvidia.com/gpu" in limits), name
        assert "memory" in limits, name
        for variable in container.get("env", []):
            key = variable.get("valueFrom", {}).get("secretKeyRef")
            assert key is None or (key["name"] == secret and key["key"] in documented), name
            if re.search(r"PASSWORD|SECRET|AUTH_STRING|_KEY_ID", variable["name"]):
                assert key, (name, variable)


@EVERY_FOLDER
def test_a_pod_mounts_volumes_that_it_has(folder):
    for name, one in workloads(folder).items():
        claimed = [it["metadata"] for it in one.spec.get("volumeClaimTemplates", [])]
        has = {it["name"] for it in [*one.pod.get("volumes", []), *claimed]}
        assert {it["name"] for it in one.container.get("volumeMounts", [])} == has, name


@pytest.mark.parametrize("folder", [JOBSET, KUEUE])
def test_resources_of_controllers_follow_their_schemas(folder):
    kinds = {f"{one['apiVersion']} {one['kind']}": one for one in render(folder)}
    for kind in kinds.keys() & CUSTOM_SCHEMAS:
        jsonschema.validate(kinds[kind], CUSTOM_SCHEMAS[kind])
    assert kinds.keys() & CUSTOM_SCHEMAS


@pytest.mark.parametrize("folder", OVERLAYS)
def test_an_overlay_adds_to_the_base_and_opens_nothing(folder):
    """So one after another gives all of them; what gives the base's worker a volume comes last."""
    changed = [one["metadata"]["name"] for one in render(BASE) if one not in render(folder)]
    assert changed == ["worker"] * (folder == STORE)
    added = [one["kind"] for one in render(folder) if one not in render(BASE)]
    assert not {"NetworkPolicy", "Namespace", "Secret"} & {*added}
    assert added and len(added) + len(render(BASE)) == len(render(folder)) + len(changed)


def test_the_store_is_reached_at_its_s3_port_alone_and_anybodys_graphs_reach_no_store():
    arrows = find_arrows(INPUT, "egress")
    to_store = {arrow for arrow in arrows if "store" in arrow}
    assert to_store == {(one, "store", 8333) for one in ("mlflow", "worker", "training-hosts")}
    pair = {("dispatcher", "input-worker", 5051), ("input-worker", "dispatcher", 5050)}
    assert {arrow for arrow in arrows if arrow[0] in ("dispatcher", "input-worker")} == pair


@pytest.mark.parametrize(
    ("folder", "name", "run", "host"),
    [
        (HOSTS, "CronJob training-hosts", "batch.kubernetes.io/job-name", "{}.training-hosts"),
        (JOBSET, "JobSet training train", "jobset.sigs.k8s.io/jobset-name", "train-0-{}.$(RUN)"),
    ],
)
def test_the_tasks_of_a_training_start_at_once_end_together_and_find_one_another(
    folder, name, run, host
):
    one = workloads(folder)[name]
    assert (one.spec["completionMode"], one.spec["backoffLimit"]) == ("Indexed", 0)
    assert one.spec["parallelism"] == one.spec["completions"] == 2
    assert (one.app, one.app, None) in find_arrows(folder, "ingress")
    variables = {it["name"]: it.get("valueFrom") for it in one.container["env"]}
    assert variables["RUN"] == {"fieldRef": {"fieldPath": f"metadata.labels['{run}']"}}
    hosts = [f"$(RUN)-{host.format(index)}" for index in range(2)]
    assert parse(one.command)["hosts"].split(",") == hosts
    if folder == HOSTS:  # the controller of JobSet makes such a service itself
        service = of_kind(HOSTS, "Service")[one.pod["subdomain"]]["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_the_quota_of_the_queue_has_room_for_every_training():
    ((queue, local),) = of_kind(KUEUE, "LocalQueue").items()
    whole = of_kind(KUEUE, "ClusterQueue")[local["spec"]["clusterQueue"]]
    (flavor,) = whole["spec"]["resourceGroups"][0]["flavors"]
    (quota,) = [it for it in flavor["resources"] if it["name"] == "nvidia.com/gpu"]
    for name, cron_job in of_kind(KUEUE, "CronJob").items():
        labels = cron_job["spec"]["jobTemplate"]["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == queue
        one = workloads(KUEUE)[f"CronJob {name}"]
        gpus = one.container["resources"]["requests"]["nvidia.com/gpu"]
        assert gpus * one.spec.get("parallelism", 1) <= int(quota["nominalQuota"])


def test_schedulers_allow_an_item_to_end_as_many_workers_as_a_stage_says():
    scheduler = workloads(DASK)["Deployment dask-scheduler"].container
    assert {it["name"]: it["value"] for it in scheduler["env"]} == ALLOWED_FAILURES
    assert [*ALLOWED_FAILURES.values()] == [str(ATTEMPTS - 1)]
    assert parse(workloads(DASK)["Deployment dask-worker"].command)["memory_limit"] == "0"


def test_the_pod_that_clones_the_project_takes_the_image_and_address_of_the_command():
    assert CLONING["image"] == workloads(BASE)["Deployment worker"].container["image"]
    (command,) = re.findall(r"^sed (.*) infra/kubernetes/clone.yaml", README, re.MULTILINE)
    assert re.findall(r"s\|(.*?)\|", command) == [CLONING["image"], "URL"]
    assert (CLONE.count(CLONING["image"]), CLONE.count("URL")) == (1, 1)


def test_a_repository_is_cloned_into_a_volume_unless_a_project_is_there(tmp_path):
    def clone(volume: Path) -> int:
        pod = volume.with_name(f"pod-{volume.name}")
        pod.mkdir()
        args = [word.replace("/tmp", str(pod)).replace("URL", str(origin)) for word in words]
        return subprocess.run(args, cwd=volume, capture_output=True, check=False).returncode

    words, origin = CLONING["args"], cheap_project(tmp_path / "origin")
    volume, other = tmp_path / "volume", cheap_project(tmp_path / "other")
    (volume / "lost+found").mkdir(parents=True)  # as in a new one
    assert clone(volume) == 0
    assert (volume / "params.yaml").read_text() == (origin / "params.yaml").read_text()
    assert "main...origin/main" in git(volume, "status", "--short", "--branch")
    git(other, "commit", "--quiet", "--allow-empty", "--message=own")
    before = git(other, "rev-parse", "HEAD")
    assert clone(other) != 0
    assert git(other, "rev-parse", "HEAD") == before
    assert git(other, "status", "--porcelain") == ""


def test_the_commands_of_the_pages_name_folders_and_templates_that_there_are():
    pages = [path.read_text() for kind in ("*.md", "*.yaml") for path in FOLDER.rglob(kind)]
    text = "\n".join([OPERATING, *pages])
    named = set(re.findall(r"apply -k (\S+?)[`\s]", text))
    assert "infra/kubernetes/overlays/gpu" in named
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in named - {"mine"})
    named_files = re.findall(r"^\| `(\S+?)`", README, re.MULTILINE)
    assert all((FOLDER / path).exists() for path in named_files)
    assert set(re.findall(r"--from=cronjob/(\S+)", text)) == of_kind(HOSTS, "CronJob").keys()
    words = workloads(HOSTS)["CronJob training-hosts"].command
    for stage in re.findall(r"sed s/tasks.train/(tasks\.\w+)/", README):
        command = [word.replace("tasks.train", stage) for word in words]
        assert parse(parse(command)["command"])["pipeline"] == "optimized"
