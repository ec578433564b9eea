"""The tf.data service, if it does not pay."""

from __future__ import annotations

from throughline.diagnosis.facts import Facts
from throughline.diagnosis.rules.base import Change, rule


@rule(
    params_key="service",
    cause="tf.data service brings cores of other hosts; on one host it only adds copies",
    change=Change(config={"service": None}),
)
def _service_on_one_host(facts: Facts) -> str | None:
    service = facts.config.service
    return (
        f"its workers share this host's {facts.cores} cores and add none"
        if service and service.on_this_host
        else None
    )


@rule(
    params_key="service.address",
    cause="the service's workers do not keep up with the training",
    change=Change(),
    fix="more workers on other hosts, or `service: null`",
)
def _slow_service(facts: Facts) -> str | None:
    service, wait_ms = facts.config.service, facts.breakdown.wait_ms_mean or 0.0
    if service is None or service.on_this_host or not facts.is_worthwhile(wait_ms):
        return None
    return f"{wait_ms:.2f} ms of each step wait for batches from {service.address}"
