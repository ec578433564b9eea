"""The manifests agree with the programs, compose.yaml and their README; no cluster is asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prefect.settings import get_current_settings
from ruamel.yaml import YAML

from infra.local.clusters import ALLOWED_FAILURES
from tests.support.command_lines import parse
from tests.support.project import ROOT
from throughline.plan.clusters import FIRST_PORT, find_tf_config
from throughline.plan.training_workers import list_addresses, training_worker_from_tf_config
from throughline.settings import StorageSettings
from throughline.shared.dask_engine import ATTEMPTS

pytestmark = [
    pytest.mark.integration,  # kubectl renders
    # MLflow warns about itself when its command line is imported.
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]
FOLDER = ROOT / "infra" / "kubernetes"
OVERLAYS = tuple(sorted(f"overlays/{path.name}" for path in (FOLDER / "overlays").iterdir()))
KUBECTL = Path(sys.executable).with_name("kubectl")  # of the locked packages
# By which their controllers label the pods of a job and of a JobSet.
JOB_NAME, JOBSET_NAME = "batch.kubernetes.io/job-name", "jobset.sigs.k8s.io/jobset-name"

Manifest = dict[str, Any]
Arrow = tuple[str, str, int | None]  # from app to app at a port; None: at any
BASE, INPUT, GPU, DASK = "base", "overlays/input-service", "overlays/gpu", "overlays/dask"
HOSTS, JOBSET, KUEUE = "overlays/multi-host", "overlays/jobset", "overlays/kueue"
STORE = "overlays/object-storage"
EVERY_FOLDER = pytest.mark.parametrize("folder", [BASE, *OVERLAYS])
COMPOSE = YAML(typ="safe").load((ROOT / "infra" / "compose.yaml").read_text())
README = (FOLDER / "README.md").read_text()
OPERATING = (ROOT / "docs" / "operating.md").read_text()
SECRETS = set(re.findall(r"(?:'|\\n)([A-Z0-9_]+)=", OPERATING))  # that its command writes
CUSTOM_SCHEMAS = json.loads((ROOT / "tests" / "infra" / "custom-resources.json").read_text())
POSTGRES_PORT = 5432
NOTHING_MORE = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
NOTHING_MORE |= {"capabilities": {"drop": ["ALL"]}}
_ADDRESS = re.compile(r"(?<![\w.$)-])(?:[a-z][\w-]*\.)?([a-z][a-z0-9-]*):(\d{2,5})\b")


@cache
def render(folder: str | Path) -> list[Manifest]:
    """What `kubectl apply -k` would apply of a folder of infra/kubernetes, in its order."""
    command = [KUBECTL, "kustomize", FOLDER / folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return list(YAML(typ="safe").load_all(done.stdout))


def name_of(manifest: Manifest) -> str:
    """Kind and name, as `kubectl` says them."""
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> dict[str, Manifest]:
    """The manifests of some kinds by their names."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] in kinds}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The pods of one template, with the labels and the names that their controller gives them.

    `job`: the specification of the job that they belong to, if any. `hosts`: their names within the
    namespace, of an Indexed Job in the order of the indices.
    """

    name: str
    template: Manifest
    job: Manifest | None = None
    labels: Mapping[str, str]
    hosts: tuple[str, ...] = ()

    @property
    def pod(self) -> Manifest:
        """The specification of the pods."""
        return self.template["spec"]

    @property
    def app(self) -> str:
        """The label by which services and policies select them."""
        return self.labels.get("app", "")

    @property
    def containers(self) -> list[Manifest]:
        """All containers, those that run before the others, too."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    def expand(self, container: Manifest) -> list[str]:
        """The command of a container with $(VARIABLE) of its labels and its name put in, as
        Kubernetes does; one that nothing sets stays.
        """
        own = {f"metadata.labels['{key}']": value for key, value in self.labels.items()}
        fields = {"metadata.name": f"{self.name.split()[1]}-0", **own}
        words = [*container.get("command", []), *container.get("args", [])]
        for variable in container.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            if field in fields:
                words = [word.replace(f"$({variable['name']})", fields[field]) for word in words]
        return words


def list_workloads(manifests: Sequence[Manifest]) -> list[Workload]:
    """The pods that manifests start, or hold a template of."""
    return [workload for manifest in manifests for workload in _workloads_of(manifest)]


def _workloads_of(manifest: Manifest) -> Iterator[Workload]:
    name, own = name_of(manifest), manifest["metadata"]["name"]
    if manifest["kind"] in ("Deployment", "StatefulSet"):
        template = manifest["spec"]["template"]
        yield Workload(name=name, template=template, labels=template["metadata"]["labels"])
    elif manifest["kind"] == "CronJob":
        job, run = manifest["spec"]["jobTemplate"]["spec"], f"{own}-1"
        service = job["template"]["spec"].get("subdomain")
        yield Workload(
            name=name,
            template=job["template"],
            job=job,
            labels={**job["template"]["metadata"]["labels"], JOB_NAME: run},
            hosts=tuple(f"{run}-{index}.{service}" for index in range(job.get("completions", 1))),
        )
    elif manifest["kind"] == "JobSet":
        for part in manifest["spec"]["replicatedJobs"]:
            job, run = part["template"]["spec"], f"{own}-{part['name']}-0"
            count = job.get("completions", 1)
            yield Workload(
                name=f"{name} {part['name']}",
                template=job["template"],
                job=job,
                labels={**job["template"]["metadata"]["labels"], JOBSET_NAME: own},
                hosts=tuple(f"{run}-{index}.{own}" for index in range(count)),
            )


def find_arrows(manifests: Sequence[Manifest], direction: str) -> set[Arrow]:
    """Who may talk to whom by the rules of a direction, `ingress` or `egress`, between pods."""
    peers, arrows = {"ingress": "from", "egress": "to"}[direction], set()
    for policy in of_kind(manifests, "NetworkPolicy").values():
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get("app")
        for rule in policy["spec"].get(direction, []):
            pods = [peer["podSelector"] for peer in rule[peers] if "podSelector" in peer]
            for app in [pod["matchLabels"]["app"] for pod in pods]:
                pair = (app, own) if direction == "ingress" else (own, app)
                arrows |= {(*pair, it.get("port")) for it in rule.get("ports", [{}])}
    return arrows


def containers_of(folder: str) -> list[tuple[Workload, Manifest]]:
    return [
        (one, container) for one in list_workloads(render(folder)) for container in one.containers
    ]


def workload(folder: str, name: str) -> Workload:
    (found,) = [one for one in list_workloads(render(folder)) if one.name == name]
    return found


def ports_of(container: Manifest) -> set[int]:
    return {port["containerPort"] for port in container.get("ports", [])}


def find_listening(words: list[str]) -> set[int]:
    """The ports at which a program listens, by its command line; Postgres has none."""
    if not words:
        return {POSTGRES_PORT}
    options = parse(words)
    if options.get("healthcheck"):
        return {get_current_settings().worker.webserver.port}
    if "hosts" in options:
        return {FIRST_PORT}
    port = options.get("worker_port") or options.get("port")
    return {int(port)} if port else set()


@pytest.mark.slow
@EVERY_FOLDER
def test_programs_take_their_commands_and_listen_at_the_ports_that_are_opened(folder):
    for one, container in containers_of(folder):
        words = one.expand(container)
        assert find_listening(words) == ports_of(container), one.name
        while words:  # tasks.cluster and the command within it
            words = parse(words).get("command", [])


@EVERY_FOLDER
def test_services_and_probes_ask_ports_that_are_opened(folder):
    workloads = list_workloads(render(folder))
    for name, service in of_kind(render(folder), "Service").items():
        wanted = service["spec"]["selector"].items()
        labels = [one.template["metadata"]["labels"].items() for one in workloads]
        selected = [one for one, own in zip(workloads, labels, strict=True) if wanted <= own]
        assert selected, name
        asked = {port.get("targetPort", port["port"]) for port in service["spec"]["ports"]}
        for one in selected:
            assert asked <= {it for own in one.containers for it in ports_of(own)}, name
    for one, container in containers_of(folder):
        probes = [probe for key, probe in container.items() if key.endswith("Probe")]
        named = [probe.get("tcpSocket") or probe.get("httpGet") or {} for probe in probes]
        assert {it["port"] for it in named if it} <= ports_of(container), one.name


@EVERY_FOLDER
def test_addresses_are_of_services_that_policies_let_a_pod_reach(folder):
    manifests = render(folder)
    arrows = find_arrows(manifests, "ingress") & find_arrows(manifests, "egress")
    services = of_kind([*manifests, *render(INPUT)], "Service")  # the worker may have that one
    there = {(name, it["port"]) for name, one in services.items() for it in one["spec"]["ports"]}
    for one, container in containers_of(folder):
        variables = {it["name"]: it["value"] for it in container.get("env", []) if "value" in it}
        texts = [*one.expand(container), *variables.values()]
        texts += [f"{variables['PGHOST']}:{POSTGRES_PORT}"] if "PGHOST" in variables else []
        for host, port in {found for text in texts for found in _ADDRESS.findall(text)}:
            if host != "localhost":
                assert (host, int(port)) in there, one.name
                assert host == one.app or (one.app, host, int(port)) in arrows, (one.name, host)


@EVERY_FOLDER
def test_every_pod_has_a_policy_and_arrows_are_allowed_on_both_sides(folder):
    manifests = render(folder)
    assert find_arrows(manifests, "ingress") == find_arrows(manifests, "egress")
    policies = of_kind(manifests, "NetworkPolicy")
    nobody = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies["nobody"]["spec"] == nobody, "what no arrow allows is refused"
    for one in list_workloads(manifests):
        assert policies[one.app]["spec"]["podSelector"] == {"matchLabels": {"app": one.app}}
    kinds = [manifest["kind"] for manifest in manifests]
    last_policy = len(kinds) - 1 - kinds[::-1].index("NetworkPolicy")
    assert last_policy < kinds.index("Deployment"), "policies come before pods"


@EVERY_FOLDER
def test_a_pod_has_a_pinned_image_documented_secrets_and_no_more_rights(folder):
    (secret,) = re.findall(r"create secret generic (\S+) +--from", README)
    pinned = {service["image"] for service in COMPOSE["services"].values()}
    labels = of_kind(render(folder), "Namespace")["throughline"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for one, container in containers_of(folder):
        security = one.pod["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"], one.name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, one.name
        assert one.pod["automountServiceAccountToken"] is False, one.name
        assert container["securityContext"] == NOTHING_MORE, one.name
        assert container["image"] in pinned, one.name
        limits = container["resources"]["limits"]
        assert container["image"].endswith("-gpu") == ("nvidia.com/gpu" in limits), one.name
        assert "memory" in limits, one.name
        for variable in container.get("env", []):
            key = variable.get("valueFrom", {}).get("secretKeyRef")
            assert key is None or (key["name"] == secret and key["key"] in SECRETS), one.name
            if re.search(r"PASSWORD|SECRET|AUTH_STRING|_KEY_ID", variable["name"]):
                assert key, (one.name, variable)


@pytest.mark.parametrize("folder", [JOBSET, KUEUE])
def test_resources_of_controllers_follow_their_schemas(folder):
    kinds = {f"{one['apiVersion']} {one['kind']}": one for one in render(folder)}
    for kind in kinds.keys() & CUSTOM_SCHEMAS:
        jsonschema.validate(kinds[kind], CUSTOM_SCHEMAS[kind])
    assert kinds.keys() & CUSTOM_SCHEMAS


@pytest.mark.parametrize("folder", OVERLAYS)
def test_an_overlay_adds_to_the_base_and_opens_nothing(folder):
    """So one after another gives all of them; what gives the base's worker a volume comes last."""
    changed = [one for one in render(BASE) if one not in render(folder)]
    assert [name_of(one) for one in changed] == ["Deployment worker"] * (folder == STORE)
    added = [one for one in render(folder) if one not in render(BASE)]
    assert not of_kind(added, "NetworkPolicy", "Namespace", "Secret")
    assert added and len(added) + len(render(BASE)) == len(render(folder)) + len(changed)


def test_the_store_is_reached_at_its_s3_port_alone_and_anybodys_graphs_reach_no_store():
    arrows = find_arrows(render(INPUT), "egress")
    to_store = {arrow for arrow in arrows if "store" in arrow}
    assert to_store == {(one, "store", 8333) for one in ("mlflow", "worker", "training-hosts")}
    from_graphs = {arrow for arrow in arrows if arrow[0] in ("dispatcher", "input-worker")}
    pair = {("dispatcher", "input-worker", 5051), ("input-worker", "dispatcher", 5050)}
    assert from_graphs == pair


@pytest.mark.parametrize(
    ("folder", "name"), [(HOSTS, "CronJob training-hosts"), (JOBSET, "JobSet training train")]
)
def test_the_tasks_of_a_training_start_at_once_end_together_and_find_one_another(folder, name):
    one = workload(folder, name)
    assert one.job["completionMode"] == "Indexed" and one.job["backoffLimit"] == 0
    assert one.job["completions"] == one.job["parallelism"] == len(one.hosts)
    assert (one.app, one.app, None) in find_arrows(render(folder), "ingress")
    named = parse(one.expand(one.containers[0]))["hosts"].split(",")
    assert tuple(named) == one.hosts
    for index in range(len(named)):
        config = {"TF_CONFIG": find_tf_config({"JOB_COMPLETION_INDEX": str(index)}, named)}
        assert training_worker_from_tf_config(config).index == index
        assert list_addresses(config) == [f"{host}:{FIRST_PORT}" for host in one.hosts]


def test_hosts_are_named_before_they_are_ready_and_each_stage_of_a_jobset_has_its_own():
    """A process that has not ended would answer those of the next stage."""
    spec = of_kind(render(HOSTS), "Service")["training-hosts"]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert workload(HOSTS, "CronJob training-hosts").pod["subdomain"] == "training-hosts"
    (jobset,) = of_kind(render(JOBSET), "JobSet").values()
    parts = jobset["spec"]["replicatedJobs"]
    stages = [workload(JOBSET, f"JobSet training {part['name']}") for part in parts]
    commands = [parse(stage.expand(stage.containers[0]))["command"] for stage in stages]
    assert [words[2] for words in commands] == [
        f"tasks.{stage}" for stage in ("build", "train", "profiling", "race")
    ]
    waits = [[(it["name"], it["status"]) for it in part.get("dependsOn", [])] for part in parts]
    assert waits == [[], *([(stage, "Complete")] for stage in ("build", "train", "profile"))]
    assert [len(stage.hosts) for stage in stages] == [1, 2, 1, 1]
    assert jobset["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"


def test_trainings_have_a_gpu_per_pod_and_wait_in_a_queue_whose_quota_has_room_for_them():
    for one, container in [*containers_of(KUEUE), *containers_of(JOBSET)]:
        assert not one.job or container["resources"]["limits"]["nvidia.com/gpu"] == 1
    manifests = render(KUEUE)
    (queue,) = of_kind(manifests, "LocalQueue").values()
    whole = of_kind(manifests, "ClusterQueue")[queue["spec"]["clusterQueue"]]
    (flavor,) = whole["spec"]["resourceGroups"][0]["flavors"]
    assert flavor["name"] in of_kind(manifests, "ResourceFlavor")
    assert of_kind(manifests, "CronJob")
    for cron_job in of_kind(manifests, "CronJob").values():
        assert cron_job["spec"]["suspend"] is True, "a template"
        template = cron_job["spec"]["jobTemplate"]
        label = template["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        assert (label, template["spec"]["suspend"]) == (queue["metadata"]["name"], True)
    hosts = workload(KUEUE, "CronJob training-hosts")
    gpus = hosts.containers[0]["resources"]["requests"]["nvidia.com/gpu"]
    (quota,) = [it for it in flavor["resources"] if it["name"] == "nvidia.com/gpu"]
    assert gpus * hosts.job["parallelism"] <= int(quota["nominalQuota"])


def test_only_pods_that_read_columns_from_the_store_have_its_key_and_a_volume_for_them():
    """The volume is where the parameters that the overlay names fetch columns to."""
    text = (FOLDER / STORE / "kustomization.yaml").read_text()
    named = YAML(typ="safe").load(re.findall(r"`storage: (\{.*?\})`", text)[0])
    storage = StorageSettings.model_validate(named)
    assert (storage.url, str(storage.cache)) == ("s3://columns", "/columns")
    for folder, given in ((HOSTS, False), (KUEUE, False), (STORE, True)):
        (container,) = workload(folder, "CronJob training-hosts").containers
        names = {variable["name"] for variable in container["env"]}
        assert ({"AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"} <= names) == given
        assert bool([name for name in names if name.startswith("AWS_")]) == given
    for name in ("CronJob training-hosts", "Deployment worker"):
        pod = workload(STORE, name).pod
        (mount,) = [it for it in pod["containers"][0]["volumeMounts"] if it["name"] == "columns"]
        (volume,) = [it for it in pod["volumes"] if it["name"] == "columns"]
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert (mount["mountPath"], claim["accessModes"]) == ("/columns", ["ReadWriteOnce"])


def test_the_dispatcher_keeps_its_journal_on_a_volume_that_stays():
    dispatcher = workload(INPUT, "Deployment dispatcher")
    (container,) = dispatcher.containers
    folder = parse(dispatcher.expand(container))["work_dir"]
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == folder)
    (volume,) = (one for one in dispatcher.pod["volumes"] if one["name"] == mount["name"])
    assert "persistentVolumeClaim" in volume
    service = COMPOSE["services"]["dispatcher"]
    assert f"--work-dir {folder}" in service["command"]
    assert service["volumes"] == [f"journal:{folder}"] and "journal" in COMPOSE["volumes"]


def test_schedulers_allow_an_item_to_end_as_many_workers_as_a_stage_says():
    (scheduler,) = workload(DASK, "Deployment dask-scheduler").containers
    assert {one["name"]: one["value"] for one in scheduler["env"]} == ALLOWED_FAILURES
    assert [*ALLOWED_FAILURES.values()] == [str(ATTEMPTS - 1)]
    (worker,) = workload(DASK, "Deployment dask-worker").containers
    assert parse(worker["args"])["memory_limit"] == "0"


def test_both_kinds_of_deployment_start_the_same_programs_with_the_same_store():
    def programs(text: str) -> set[str]:
        names = r"infra\.store|prefect server|flows\.servers\.tracking_server|flows\.worker"
        return set(re.findall(rf"{names}|service (?:dispatcher|worker)", text))

    commands = " ".join(str(service.get("command", "")) for service in COMPOSE["services"].values())
    arguments = " ".join(word for one, own in containers_of(INPUT) for word in one.expand(own))
    assert programs(commands) == programs(arguments) and len(programs(commands)) == 6
    (container,) = workload(BASE, "Deployment worker").containers
    given = {it["name"] for it in container["env"] if it["name"].startswith("AWS_")}
    variables = COMPOSE["services"]["worker"]["environment"]
    assert given == {name for name in variables if name.startswith("AWS_")}


def test_the_pod_that_clones_the_project_is_like_the_worker_and_takes_image_and_address():
    text = (FOLDER / "clone.yaml").read_text()
    (own,) = YAML(typ="safe").load(text)["spec"]["containers"]
    (worker,) = workload(BASE, "Deployment worker").containers
    for key in ("image", "workingDir", "securityContext"):
        assert own[key] == worker[key]
    (command,) = re.findall(r"^sed (.*) infra/kubernetes/clone.yaml", README, re.MULTILINE)
    assert re.findall(r"s\|(.*?)\|", command) == [own["image"], "URL"]
    assert (text.count(own["image"]), text.count("URL")) == (1, 1)


def test_the_commands_of_the_pages_name_folders_and_templates_that_there_are():
    pages = [ROOT / "docs" / "operating.md", *FOLDER.rglob("*.md"), *FOLDER.rglob("*.yaml")]
    text = "\n".join(page.read_text() for page in pages)
    named = set(re.findall(r"apply -k (\S+?)[`\s]", text))
    assert f"infra/kubernetes/{GPU}" in named
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in named - {"mine"})
    assert all((FOLDER / path).exists() for path in re.findall(r"^\| `(\S+?)`", README, re.M))
    templates = set(re.findall(r"--from=cronjob/(\S+)", text))
    assert templates == set(of_kind(render(HOSTS), "CronJob"))
    hosts = workload(HOSTS, "CronJob training-hosts")
    for stage in re.findall(r"sed s/tasks.train/(tasks\.\w+)/", README):
        words = [word.replace("tasks.train", stage) for word in hosts.expand(hosts.containers[0])]
        assert parse(parse(words)["command"])["pipeline"] == "optimized"
