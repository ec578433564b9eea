"""What can be wrong with rendered manifests although Kubernetes' schemas allow it: each check
returns the faults that it finds, with the manifest's name and the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import jsonschema
from ruamel.yaml import YAML

from tests.support.command_lines import NotAccepted, parse
from tests.support.manifests import FOLDER, Manifest, list_workloads, name_of, of_kind, validate
from tests.support.network_checks import (
    check_addresses,
    check_hosts,
    check_policies,
    check_ports,
    check_selectors,
)
from tests.support.project import ROOT

COMPOSE = YAML(typ="safe").load((ROOT / "infra" / "compose.yaml").read_text())
IMAGES = {service["image"] for service in COMPOSE["services"].values()}
OPERATING = (ROOT / "docs" / "operating.md").read_text()
SECRETS = set(re.findall(r"(?:'|\\n)([A-Z0-9_]+)=", OPERATING))  # that its command writes
README = (FOLDER / "README.md").read_text()
OBJECT_STORAGE = (FOLDER / "overlays" / "object-storage" / "kustomization.yaml").read_text()
# As params.yaml says it with that overlay.
STORAGE = YAML(typ="safe").load(re.findall(r"`storage: (\{.*?\})`", OBJECT_STORAGE)[0])
SECRET, CONFIG_MAP = (
    re.findall(rf"create {kind} (\S+) +--from", README) for kind in ("secret generic", "configmap")
)
GPU = "nvidia.com/gpu"
QUEUE = "kueue.x-k8s.io/queue-name"
NOTHING_MORE = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_UNITS = {"m": Decimal("0.001"), "Mi": 2**20, "Gi": 2**30}


def find_faults(manifests: Sequence[Manifest]) -> list[str]:
    """All that is wrong with what one folder renders to."""
    checks = (
        check_schemas,
        check_selectors,
        check_ports,
        check_references,
        check_caches,
        check_privileges,
        check_images,
        check_commands,
        check_addresses,
        check_policies,
        check_hosts,
        check_order,
        check_queues,
    )
    return [fault for check in checks for fault in check(manifests)]


def check_schemas(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Each is what Kubernetes, or its controller, expects, in the namespace that there is."""
    for manifest in manifests:
        try:
            validate(manifest)
        except jsonschema.ValidationError as error:
            yield f"{name_of(manifest)}: {error.message}"
        whole_cluster = manifest["kind"] in ("Namespace", "ClusterQueue", "ResourceFlavor")
        if not whole_cluster and manifest["metadata"].get("namespace") != "throughline":
            yield f"{name_of(manifest)}: is not in the namespace throughline"


def check_references(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Secrets are the documented ones, by reference, and volumes are of what there is."""
    claims = set(of_kind(manifests, "PersistentVolumeClaim"))
    own = {
        name_of(one): {it["metadata"]["name"] for it in one["spec"].get("volumeClaimTemplates", [])}
        for one in of_kind(manifests, "StatefulSet").values()
    }
    for workload in list_workloads(manifests):
        volumes = {it["name"] for it in workload.pod.get("volumes", [])}
        mounts = {it["name"] for one in workload.containers for it in one["volumeMounts"]}
        for name in sorted(mounts - volumes - own.get(workload.name, set())):
            yield f"{workload.name}: its pod has no volume {name}"
        for volume in workload.pod.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and claim not in claims:
                yield f"{workload.name}: there is no PersistentVolumeClaim {claim}"
            config_map = volume.get("configMap", {}).get("name")
            if config_map and config_map not in CONFIG_MAP:
                yield f"{workload.name}: README.md makes no ConfigMap {config_map}"
        for container in workload.containers:
            for variable in container.get("env", []):
                key = variable.get("valueFrom", {}).get("secretKeyRef")
                if key and (key["name"] not in SECRET or key["key"] not in SECRETS):
                    yield f"{workload.name}: {key} is not among the documented secrets"
                secret = re.search(r"PASSWORD|SECRET|AUTH_STRING|_KEY_ID", variable["name"])
                if secret and not key:
                    yield f"{workload.name}: {variable['name']} is not from a secret"


def check_caches(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Where one pod has a volume at `storage.cache`, all have it that work in the project and reach
    the store: nobody writes into an image.
    """
    mounts = {
        workload.name: {mount["mountPath"] for mount in container["volumeMounts"]}
        for workload in list_workloads(manifests)
        for container in workload.containers
        if container.get("workingDir") == "/project"
        and "AWS_ENDPOINT_URL" in {variable["name"] for variable in container.get("env", [])}
    }
    if any(STORAGE["cache"] in paths for paths in mounts.values()):
        for name in [name for name, paths in mounts.items() if STORAGE["cache"] not in paths]:
            yield f"{name}: has no volume at {STORAGE['cache']}, which is storage.cache"


def check_privileges(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Nothing runs as root, writes into its image, or can get more rights than it has."""
    for workload in list_workloads(manifests):
        own = workload.pod["securityContext"]
        if own.get("runAsNonRoot") is not True or not own.get("runAsUser"):
            yield f"{workload.name}: may run as root"
        if own.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{workload.name}: has no seccomp profile"
        if workload.pod.get("automountServiceAccountToken") is not False:
            yield f"{workload.name}: has a token of the cluster"
        for container in workload.containers:
            if container["securityContext"] != NOTHING_MORE:
                yield f"{workload.name}: {container['securityContext']} is not {NOTHING_MORE}"
            written = {mount["mountPath"] for mount in container["volumeMounts"]}
            needed = {"/tmp"} if container["name"] == "postgres" else {"/tmp", "/home/throughline"}
            if not needed <= written:
                yield f"{workload.name}: cannot write {sorted(needed - written)}"


def check_images(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Images are those of compose.yaml, the one with CUDA where there is a GPU, and limited."""
    for workload in list_workloads(manifests):
        for container in workload.containers:
            image, resources = container["image"], container["resources"]
            if image not in IMAGES:
                yield f"{workload.name}: {image} is not among the pinned {sorted(IMAGES)}"
            if (GPU in resources["limits"]) != image.endswith("-gpu"):
                yield f"{workload.name}: {image} with {resources['limits']}"
            if "memory" not in resources["limits"] or "cpu" not in resources["requests"]:
                yield f"{workload.name}: {resources} are no limits"


def check_commands(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Programs take their command lines, and the commands within these."""
    for workload in list_workloads(manifests):
        for container in workload.containers:
            words = workload.expand(container)
            while words:
                try:
                    options = parse(words)
                except NotAccepted as error:
                    yield f"{workload.name}: {' '.join(words[:3])}: {error}"
                    break
                words = options.get("command", [])


def check_order(manifests: Sequence[Manifest]) -> Iterator[str]:
    """What a part of a JobSet waits for is a part that is named before it."""
    for jobset in of_kind(manifests, "JobSet").values():
        earlier: set[str] = set()
        for part in jobset["spec"]["replicatedJobs"]:
            for needed in {it["name"] for it in part.get("dependsOn", [])} - earlier:
                yield f"{name_of(jobset)} {part['name']}: {needed} does not come before it"
            earlier.add(part["name"])


def check_queues(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Jobs wait in queues that there are, whose quotas have room for each of them."""
    local, whole = of_kind(manifests, "LocalQueue"), of_kind(manifests, "ClusterQueue")
    flavors = of_kind(manifests, "ResourceFlavor")
    for name, cron_job in of_kind(manifests, "CronJob").items():
        template = cron_job["spec"]["jobTemplate"]
        queue = template["metadata"]["labels"].get(QUEUE)
        if queue is None and not local:
            continue
        if queue not in local:
            yield f"CronJob {name}: there is no LocalQueue {queue}"
            continue
        if template["spec"].get("suspend") is not True:
            yield f"CronJob {name}: its jobs do not wait to be admitted"
        cluster_queue = whole.get(local[queue]["spec"].get("clusterQueue"))
        if cluster_queue is None:
            yield f"LocalQueue {queue}: there is no such ClusterQueue"
            continue
        (group,) = cluster_queue["spec"]["resourceGroups"]
        (flavor,) = group["flavors"]
        if flavor["name"] not in flavors:
            yield f"{name_of(cluster_queue)}: there is no ResourceFlavor {flavor['name']}"
        if [it["name"] for it in flavor["resources"]] != group["coveredResources"]:
            yield f"{name_of(cluster_queue)}: quotas are not those of coveredResources, in order"
        quotas = {it["name"]: read_quantity(it["nominalQuota"]) for it in flavor["resources"]}
        for resource, amount in _sum_requests(template["spec"]).items():
            if amount > quotas.get(resource, 0):
                yield f"CronJob {name}: {amount} of {resource} are over the quota for ever"


def _sum_requests(job: Mapping[str, Any]) -> dict[str, Decimal]:
    """What all pods of a job request together."""
    total: dict[str, Decimal] = {}
    for container in job["template"]["spec"]["containers"]:
        for resource, amount in container["resources"]["requests"].items():
            whole = read_quantity(amount) * job.get("parallelism", 1)
            total[resource] = total.get(resource, Decimal()) + whole
    return total


def read_quantity(text: str | int) -> Decimal:
    """A quantity of Kubernetes as a number: 1500m is 1.5, 2Gi are 2 * 2**30."""
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()
    return Decimal(number) * _UNITS.get(unit, 1)
