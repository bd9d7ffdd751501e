"""Formats a cascade as text for other tools: RabbitMQ's definitions, Terraform. Contacts no broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import kombu

from ..delay.core.options import Options
from .all_parts import Topology


def definitions(topology: Topology, vhost: str) -> str:
    """Return RabbitMQ's own format, for `rabbitmqctl import_definitions` (https://www.rabbitmq.com/docs/definitions)."""
    common = {"vhost": vhost, "durable": True, "auto_delete": False}
    tables = {
        "vhosts": [{"name": vhost}],
        "exchanges": [
            {"name": e.name, "type": e.type, "internal": False, "arguments": dict(e.arguments), **common}
            for e in topology.exchanges.values()
        ],
        "queues": [{"name": q.name, "arguments": dict(q.arguments), **common} for q in topology.queues.values()],
        "bindings": [{**b._asdict(), "vhost": vhost, "arguments": {}} for b in topology.bindings],
    }
    return json.dumps(tables, indent=1)


def terraform(topology: Topology, vhost: str) -> str:
    """Return resources of the most common provider, `cyrilgdn/rabbitmq`, in Terraform's JSON syntax.

    https://developer.hashicorp.com/terraform/language/syntax/json
    """
    resources: dict[str, dict[str, Any]] = {"rabbitmq_exchange": {}, "rabbitmq_queue": {}, "rabbitmq_binding": {}}
    common: dict[str, Any] = {"durable": True, "auto_delete": False}
    for exchange in topology.exchanges.values():
        settings = {"type": exchange.type, **common}
        if exchange.arguments:
            settings["arguments"] = {name: _literal(value) for name, value in exchange.arguments.items()}
        resources["rabbitmq_exchange"][_identifier(exchange.name)] = {
            "name": _literal(exchange.name),
            "vhost": _literal(vhost),
            "settings": settings,
        }
    for queue in topology.queues.values():
        resources["rabbitmq_queue"][_identifier(queue.name)] = {
            "name": _literal(queue.name),
            "vhost": _literal(vhost),
            # Not `arguments`, whose values are all strings: RabbitMQ requires a number as TTL.
            "settings": {**common, "arguments_json": _literal(json.dumps(dict(queue.arguments)))},
        }
    for number, binding in enumerate(topology.bindings):
        # References make Terraform create both ends first; parts outside of the cascade exist already.
        ends = topology.exchanges if binding.destination_type == "exchange" else topology.queues
        resources["rabbitmq_binding"][f"{_identifier(binding.source)}_{number}"] = {
            "vhost": _literal(vhost),
            "source": _reference("exchange", binding.source, topology.exchanges),
            "destination": _reference(binding.destination_type, binding.destination, ends),
            "destination_type": binding.destination_type,
            "routing_key": _literal(binding.routing_key),
        }
    provider = {"required_providers": {"rabbitmq": {"source": "cyrilgdn/rabbitmq"}}}
    return json.dumps({"terraform": provider, "resource": resources}, indent=1)


def _reference(kind: str, name: str, known: Mapping[str, Any]) -> str:
    return f"${{rabbitmq_{kind}.{_identifier(name)}.name}}" if name in known else _literal(name)


def _literal(text: str) -> str:
    """Escape the beginnings of Terraform's templates."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _identifier(name: str) -> str:
    return re.sub(r"^(?=[^A-Za-z_])", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name))


FORMATS: dict[str, Callable[[Topology, str], str]] = {"definitions": definitions, "terraform": terraform}


def export(connection: kombu.Connection, kind: str) -> str:
    """Return what `setup` creates, except for what leads to queues of an app, in one of `FORMATS`."""
    options: Options = connection.transport.delay_options
    beside = connection.transport.intercept(connection).streams(wanted=True)
    topology = Topology.of([options.cascade], (), beside)
    return FORMATS[kind](topology, connection.virtual_host or "/")
