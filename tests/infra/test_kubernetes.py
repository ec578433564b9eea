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
from throughline.settings import StorageSettings
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


def workload(own: str, spec: Manifest, given: dict[str, str], host: str = "") -> SimpleNamespace:
    """The pods of a template in the spec of a Job, a Deployment or a StatefulSet: with labels that
    are given besides its own, $(VARIABLE) put into the command, and the pods' names in the
    namespace, each `host` with an index.
    """
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"] | given
    (container,) = [*pod.get("initContainers", []), *pod["containers"]]
    fields = {f"metadata.labels['{key}']": value for key, value in labels.items()}
    fields["metadata.name"] = f"{own}-0"
    command = [*container.get("command", []), *container.get("args", [])]
    for variable in container.get("env", []):
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        if path in fields:
            command = [word.replace(f"$({variable['name']})", fields[path]) for word in command]
    return SimpleNamespace(
        spec=spec,
        labels=labels,
        app=labels["app"],  # by which services and policies select them
        pod=pod,
        container=container,
        command=command,
        ports={port["containerPort"] for port in container.get("ports", [])},
        hosts=[host.format(index) for index in range(spec.get("completions", 1))],
    )


@cache
def workloads(folder: str) -> dict[str, SimpleNamespace]:
    """The pods that manifests start, or hold a template of, by kind and name."""
    found = {}
    for manifest in render(folder):
        kind, own, spec = manifest["kind"], manifest["metadata"]["name"], manifest.get("spec")
        if kind in ("Deployment", "StatefulSet"):
            found[f"{kind} {own}"] = workload(own, spec, {})
        elif kind == "CronJob":
            job, label = spec["jobTemplate"]["spec"], {"batch.kubernetes.io/job-name": f"{own}-1"}
            host = f"{own}-1-{{}}.{job['template']['spec'].get('subdomain')}"
            found[f"{kind} {own}"] = workload(own, job, label, host)
        elif kind == "JobSet":
            label = {"jobset.sigs.k8s.io/jobset-name": own}
            for part in spec["replicatedJobs"]:
                name, job = part["name"], part["template"]["spec"]
                host = f"{own}-{name}-0-{{}}.{own}"
                found[f"{kind} {own} {name}"] = workload(own, job, label, host)
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
        words = one.command
        while words:  # tasks.cluster and the command within it
            words = parse(words).get("command", [])


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
    ("folder", "name"), [(HOSTS, "CronJob training-hosts"), (JOBSET, "JobSet training train")]
)
def test_the_tasks_of_a_training_start_at_once_end_together_and_find_one_another(folder, name):
    one = workloads(folder)[name]
    assert (one.spec["completionMode"], one.spec["backoffLimit"]) == ("Indexed", 0)
    assert one.spec["parallelism"] == len(one.hosts)
    assert (one.app, one.app, None) in find_arrows(folder, "ingress")
    assert parse(one.command)["hosts"].split(",") == one.hosts


def test_hosts_are_named_before_they_are_ready_and_each_stage_of_a_jobset_has_its_own():
    """A process that has not ended would answer those of the next stage."""
    spec = of_kind(HOSTS, "Service")["training-hosts"]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert workloads(HOSTS)["CronJob training-hosts"].pod["subdomain"] == "training-hosts"
    spec = of_kind(JOBSET, "JobSet")["training"]["spec"]
    assert spec["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
    stages = []
    for part in spec["replicatedJobs"]:
        one = workloads(JOBSET)[f"JobSet training {part['name']}"]
        waits = [(it["name"], it["status"]) for it in part.get("dependsOn", [])]
        stages.append((part["name"], parse(one.command)["command"][2], len(one.hosts), waits))
    assert stages == [
        ("build", "tasks.build", 1, []),
        ("train", "tasks.train", 2, [("build", "Complete")]),
        ("profile", "tasks.profiling", 1, [("train", "Complete")]),
        ("race", "tasks.race", 1, [("profile", "Complete")]),
    ]


def test_trainings_have_a_gpu_per_pod_and_wait_in_a_queue_whose_quota_has_room_for_them():
    for name, one in (workloads(KUEUE) | workloads(JOBSET)).items():
        if name.startswith(("CronJob", "JobSet")):
            assert one.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    ((queue, local),) = of_kind(KUEUE, "LocalQueue").items()
    whole = of_kind(KUEUE, "ClusterQueue")[local["spec"]["clusterQueue"]]
    (flavor,) = whole["spec"]["resourceGroups"][0]["flavors"]
    assert flavor["name"] in of_kind(KUEUE, "ResourceFlavor")
    for cron_job in of_kind(KUEUE, "CronJob").values():
        assert cron_job["spec"]["suspend"] is True, "a template"
        template = cron_job["spec"]["jobTemplate"]
        assert template["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue
        assert template["spec"]["suspend"] is True
    hosts = workloads(KUEUE)["CronJob training-hosts"]
    gpus = hosts.container["resources"]["requests"]["nvidia.com/gpu"]
    quotas = {it["name"]: it["nominalQuota"] for it in flavor["resources"]}
    assert gpus * hosts.spec["parallelism"] <= int(quotas["nvidia.com/gpu"])


def test_only_pods_that_read_columns_from_the_store_have_its_key_and_a_volume_for_them():
    """The volume is where the parameters that the overlay names fetch columns to."""
    text = (FOLDER / STORE / "kustomization.yaml").read_text()
    named = YAML(typ="safe").load(re.findall(r"`storage: (\{.*?\})`", text)[0])
    storage = StorageSettings.model_validate(named)
    assert (storage.url, str(storage.cache)) == ("s3://columns", "/columns")
    keys = {"AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"}
    for folder, given in ((HOSTS, set()), (KUEUE, set()), (STORE, keys)):
        env = workloads(folder)["CronJob training-hosts"].container["env"]
        names = {it["name"] for it in env if it["name"].startswith("AWS_")}
        assert given <= names and bool(names) == bool(given)
    for name in ("CronJob training-hosts", "Deployment worker"):
        one = workloads(STORE)[name]
        (mount,) = [it for it in one.container["volumeMounts"] if it["name"] == "columns"]
        (volume,) = [it for it in one.pod["volumes"] if it["name"] == "columns"]
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert (mount["mountPath"], claim["accessModes"]) == ("/columns", ["ReadWriteOnce"])


def test_the_dispatcher_keeps_its_journal_on_a_volume_that_stays():
    service = COMPOSE["services"]["dispatcher"]
    dispatcher = workloads(INPUT)["Deployment dispatcher"]
    folder = parse(dispatcher.command)["work_dir"]
    mounts = {it["mountPath"]: it["name"] for it in dispatcher.container["volumeMounts"]}
    volumes = {it["name"]: it for it in dispatcher.pod["volumes"]}
    assert "persistentVolumeClaim" in volumes[mounts[folder]]
    assert f"--work-dir {folder}" in service["command"]
    assert service["volumes"] == [f"journal:{folder}"] and "journal" in COMPOSE["volumes"]


def test_schedulers_allow_an_item_to_end_as_many_workers_as_a_stage_says():
    scheduler = workloads(DASK)["Deployment dask-scheduler"].container
    assert {it["name"]: it["value"] for it in scheduler["env"]} == ALLOWED_FAILURES
    assert [*ALLOWED_FAILURES.values()] == [str(ATTEMPTS - 1)]
    assert parse(workloads(DASK)["Deployment dask-worker"].command)["memory_limit"] == "0"


def test_both_kinds_of_deployment_start_the_same_programs_with_the_same_store():
    names = r"infra\.store|prefect server|flows\.servers\.tracking_server|flows\.worker"
    program = re.compile(rf"{names}|service (?:dispatcher|worker)")
    commands = [str(service.get("command", "")) for service in COMPOSE["services"].values()]
    arguments = [word for one in workloads(INPUT).values() for word in one.command]
    programs = {*program.findall(" ".join(commands))}
    assert programs == {*program.findall(" ".join(arguments))} and len(programs) == 6
    given = [it["name"] for it in workloads(BASE)["Deployment worker"].container["env"]]
    named = COMPOSE["services"]["worker"]["environment"]
    assert {it for it in given if it[:4] == "AWS_"} == {it for it in named if it[:4] == "AWS_"}


def test_the_pod_that_clones_the_project_is_like_the_worker_and_takes_image_and_address():
    (own,) = YAML(typ="safe").load(CLONE)["spec"]["containers"]
    worker = workloads(BASE)["Deployment worker"].container
    for key in ("image", "workingDir", "securityContext"):
        assert own[key] == worker[key]
    (command,) = re.findall(r"^sed (.*) infra/kubernetes/clone.yaml", README, re.MULTILINE)
    assert re.findall(r"s\|(.*?)\|", command) == [own["image"], "URL"]
    assert (CLONE.count(own["image"]), CLONE.count("URL")) == (1, 1)


def test_a_repository_is_cloned_into_a_volume_unless_a_project_is_there(tmp_path):
    def clone(volume: Path) -> bool:
        pod = volume.with_name(f"pod-{volume.name}")
        pod.mkdir()
        words = [origin if word == "URL" else word.replace("/tmp", str(pod)) for word in command]
        return subprocess.run(words, cwd=volume, capture_output=True, check=False).returncode == 0

    (container,) = YAML(typ="safe").load(CLONE)["spec"]["containers"]
    command, origin = container["args"], cheap_project(tmp_path / "origin")
    git(origin, "branch", "--move", "trunk")
    volume, other = tmp_path / "volume", cheap_project(tmp_path / "other")
    (volume / "lost+found").mkdir(parents=True)  # as in a new one
    assert clone(volume)
    assert (volume / "params.yaml").read_text() == (origin / "params.yaml").read_text()
    assert "trunk...origin/trunk" in git(volume, "status", "--short", "--branch")
    git(other, "commit", "--quiet", "--allow-empty", "--message=own")
    before = git(other, "rev-parse", "HEAD")
    assert not clone(other)
    assert git(other, "rev-parse", "HEAD") == before
    assert git(other, "status", "--porcelain") == ""


def test_the_commands_of_the_pages_name_folders_and_templates_that_there_are():
    pages = [path.read_text() for kind in ("*.md", "*.yaml") for path in FOLDER.rglob(kind)]
    text = "\n".join([OPERATING, *pages])
    named = set(re.findall(r"apply -k (\S+?)[`\s]", text))
    assert "infra/kubernetes/overlays/gpu" in named
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in named - {"mine"})
    assert all((FOLDER / path).exists() for path in re.findall(r"^\| `(\S+?)`", README, re.M))
    assert set(re.findall(r"--from=cronjob/(\S+)", text)) == of_kind(HOSTS, "CronJob").keys()
    words = workloads(HOSTS)["CronJob training-hosts"].command
    for stage in re.findall(r"sed s/tasks.train/(tasks\.\w+)/", README):
        command = [word.replace("tasks.train", stage) for word in words]
        assert parse(parse(command)["command"])["pipeline"] == "optimized"
