"""Who finds and reaches whom by rendered manifests: selectors, ports, addresses, policies, names.
Each check returns the faults that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from prefect.settings import get_current_settings

from tests.support.command_lines import NotAccepted, parse
from tests.support.manifests import (
    FOLDER,
    Manifest,
    Workload,
    list_workloads,
    name_of,
    of_kind,
    render,
)
from throughline.plan.clusters import FIRST_PORT, find_tf_config
from throughline.plan.training_workers import list_addresses, training_worker_from_tf_config

POSTGRES_PORT = 5432
_ADDRESS = re.compile(r"(?<![\w.$)-])(?:[a-z][\w-]*\.)?([a-z][a-z0-9-]*):(\d{2,5})\b")
Arrow = tuple[str, str, int | None]  # from app to app at a port; None: at any


def check_selectors(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Services and controllers select pods that there are; each stable name has its service."""
    workloads, services = list_workloads(manifests), of_kind(manifests, "Service")
    for name, service in services.items():
        if not _select(service, workloads):
            yield f"Service {name}: selects no pod by {service['spec']['selector']}"
    for name, found in of_kind(manifests, "Deployment", "StatefulSet").items():
        labels = found["spec"]["template"]["metadata"]["labels"]
        if not found["spec"]["selector"]["matchLabels"].items() <= labels.items():
            yield f"{name_of(found)}: selects other pods than its own, {labels}"
        if found["kind"] == "StatefulSet" and found["spec"]["serviceName"] not in services:
            yield f"StatefulSet {name}: serviceName is no Service"


def _select(service: Manifest, workloads: Iterable[Workload]) -> list[Workload]:
    wanted = service["spec"]["selector"].items()
    return [one for one in workloads if wanted <= one.template["metadata"]["labels"].items()]


def check_ports(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Services and probes name ports that a container opens, and containers those that their
    program listens at.
    """
    workloads = list_workloads(manifests)
    for name, service in of_kind(manifests, "Service").items():
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            for workload in _select(service, workloads):
                if target not in workload.ports:
                    yield f"Service {name}: {workload.name} opens no port {target}"
    for workload in workloads:
        for container in workload.containers:
            probes = [probe for kind, probe in container.items() if kind.endswith("Probe")]
            named = [probe.get("tcpSocket") or probe.get("httpGet") or {} for probe in probes]
            for port in {it["port"] for it in named if it} - workload.ports:
                yield f"{workload.name}: a probe asks port {port}, which is not opened"
            stated = {port["containerPort"] for port in container.get("ports", [])}
            opened = _find_opened(workload, container)
            if stated != opened:
                yield f"{workload.name}: listens at {sorted(opened)}, and opens {sorted(stated)}"


def _find_opened(workload: Workload, container: Manifest) -> set[int]:
    """The ports at which the program of a container listens, by its options."""
    words = workload.expand(container)
    if not words:
        return {POSTGRES_PORT}
    try:
        options = parse(words)
    except NotAccepted:
        return set()
    if options.get("healthcheck"):
        return {get_current_settings().worker.webserver.port}
    if "hosts" in options:
        return {FIRST_PORT}
    port = options.get("worker_port") or options.get("port")
    return {int(port)} if port else set()


def check_addresses(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Addresses in commands and variables are of services that there are, and policies let them
    be reached; those of the tf.data service where it is there.
    """
    workloads, services = list_workloads(manifests), of_kind(manifests, "Service")
    there = {(name, it["port"]) for name, one in services.items() for it in one["spec"]["ports"]}
    arrows = find_arrows(manifests, "ingress") & find_arrows(manifests, "egress")
    optional = set(of_kind(render(FOLDER / "overlays" / "input-service"), "Service"))
    optional -= {workload.app for workload in workloads}
    for workload in workloads:
        for host, port in sorted(_find_addresses(workload)):
            if host in optional:
                continue
            if (host, port) not in there:
                yield f"{workload.name}: no Service {host} has port {port}"
            elif host != workload.app and (workload.app, host, port) not in arrows:
                yield f"{workload.name}: no policy lets it reach {host}:{port}"


def _find_addresses(workload: Workload) -> set[tuple[str, int]]:
    """Host and port of the services that a workload is configured for."""
    texts = []
    for container in workload.containers:
        variables = {it["name"]: it["value"] for it in container.get("env", []) if "value" in it}
        texts += [*workload.expand(container), *variables.values()]
        texts += [f"{variables['PGHOST']}:{POSTGRES_PORT}"] if "PGHOST" in variables else []
    found = {(host, int(port)) for text in texts for host, port in _ADDRESS.findall(text)}
    return {(host, port) for host, port in found if host != "localhost"}


def find_arrows(manifests: Sequence[Manifest], direction: str) -> set[Arrow]:
    """Who may talk to whom by the rules of a direction; those about others than pods are left
    out.
    """
    peers, arrows = {"ingress": "from", "egress": "to"}[direction], set()
    for policy in of_kind(manifests, "NetworkPolicy").values():
        own = policy["spec"]["podSelector"].get("matchLabels", {}).get("app")
        for rule in policy["spec"].get(direction, []):
            pods = [peer["podSelector"] for peer in rule[peers] if "podSelector" in peer]
            for app in [pod["matchLabels"]["app"] for pod in pods]:
                pair = (app, own) if direction == "ingress" else (own, app)
                arrows |= {(*pair, it.get("port")) for it in rule.get("ports", [{}])}
    return arrows


def check_policies(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Policies say the same from both sides, name ports that are opened, and refuse what they do
    not name; each pod has one, which comes before it.
    """
    ingress, workloads = find_arrows(manifests, "ingress"), list_workloads(manifests)
    for arrow in sorted(ingress ^ find_arrows(manifests, "egress"), key=str):
        yield f"NetworkPolicy: {arrow} is allowed on one side only"
    for _, app, port in sorted(ingress, key=str):
        opened = {it for workload in workloads if workload.app == app for it in workload.ports}
        if port and opened and port not in opened:
            yield f"NetworkPolicy {app}: {app} opens no port {port}"
    policies = of_kind(manifests, "NetworkPolicy")
    everybody = [it["spec"] for it in policies.values() if it["spec"]["podSelector"] == {}]
    if {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} not in everybody:
        yield "NetworkPolicy: what no arrow allows is not refused"
    for workload in workloads:
        selected = policies.get(workload.app, {"spec": {}})["spec"]
        if selected.get("podSelector") != {"matchLabels": {"app": workload.app}}:
            yield f"{workload.name}: no NetworkPolicy is about app {workload.app!r}"
    kinds = [manifest["kind"] for manifest in manifests]
    pods = [kinds.index(kind) for kind in ("Deployment", "StatefulSet")]
    if "NetworkPolicy" in kinds[min(pods) :]:
        yield "NetworkPolicy: pods come before it"


def check_hosts(manifests: Sequence[Manifest]) -> Iterator[str]:
    """The tasks of a training on several hosts start at once, end together, are found by the names
    that their command gives them, and may talk to one another.
    """
    arrows = find_arrows(manifests, "ingress") & find_arrows(manifests, "egress")
    for workload in list_workloads(manifests):
        job, words = workload.job, workload.expand(workload.containers[0])
        if job is None or "tasks.cluster" not in words:
            continue
        if job.get("completionMode") != "Indexed" or job["completions"] != job.get("parallelism"):
            yield f"{workload.name}: its tasks have no indices, or do not run at once"
        if job.get("backoffLimit") != 0:
            yield f"{workload.name}: one task that is lost does not end the others"
        if (workload.app, workload.app, None) not in arrows:
            yield f"{workload.name}: its tasks may not talk to one another"
        yield from _check_names(workload, parse(words)["hosts"].split(","))
        if subdomain := workload.pod.get("subdomain"):
            spec = of_kind(manifests, "Service").get(subdomain, {"spec": {}})["spec"]
            found = _select(
                {"spec": {"selector": {"app": "", **spec.get("selector", {})}}}, [workload]
            )
            early = spec.get("publishNotReadyAddresses")
            if not found or spec.get("clusterIP") != "None" or not early:
                yield f"{workload.name}: no Service {subdomain} gives its pods their names"


def _check_names(workload: Workload, named: Sequence[str]) -> Iterator[str]:
    """What the tasks of a job make of the names in their command."""
    if tuple(named) != workload.hosts:
        yield f"{workload.name}: --hosts names {named}; its pods are {list(workload.hosts)}"
        return
    for index, _ in enumerate(workload.hosts):
        config = {"TF_CONFIG": find_tf_config({"JOB_COMPLETION_INDEX": str(index)}, named)}
        if training_worker_from_tf_config(config).index != index:
            yield f"{workload.name}: task {index} is another one by TF_CONFIG"
        if list_addresses(config) != [f"{host}:{FIRST_PORT}" for host in workload.hosts]:
            yield f"{workload.name}: task {index} finds the others elsewhere"
