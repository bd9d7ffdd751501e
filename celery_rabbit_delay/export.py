"""A topology as text for other tools. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .topology import Binding, Topology


def definitions(topology: Topology, vhost: str) -> str:
    """RabbitMQ's own format, for `rabbitmqctl import_definitions` (https://www.rabbitmq.com/docs/definitions)."""
    common = {"vhost": vhost, "durable": True, "auto_delete": False}
    tables = {
        "vhosts": [{"name": vhost}],
        "exchanges": [
            {"name": e.name, "type": e.type, "internal": False, "arguments": dict(e.arguments), **common}
            for e in topology.exchanges.values()
        ],
        "queues": [{"name": q.name, "arguments": dict(q.arguments), **common} for q in topology.queues.values()],
        "bindings": [
            {
                "vhost": vhost,
                "source": b.source,
                "destination": b.target,
                "destination_type": b.kind,
                "routing_key": b.routing_key,
                "arguments": {},
            }
            for b in topology.bindings
        ],
    }
    return json.dumps(tables, indent=1)


def terraform(topology: Topology, vhost: str) -> str:
    """Resources of the provider `cyrilgdn/rabbitmq`, which most people use, in HCL."""
    return "\n".join(_resources(topology, vhost)) + "\n"


def _resources(topology: Topology, vhost: str) -> Iterator[str]:
    yield 'terraform {\n  required_providers {\n    rabbitmq = {\n      source = "cyrilgdn/rabbitmq"\n    }\n  }\n}'
    for exchange in topology.exchanges.values():
        yield _resource("exchange", exchange.name, vhost, {"type": exchange.type}, exchange.arguments)
    for queue in topology.queues.values():
        yield _resource("queue", queue.name, vhost, {}, queue.arguments)
    for number, binding in enumerate(topology.bindings):
        # References, so that Terraform creates both ends first; what is not ours is there already.
        ends = {"source": _reference("exchange", binding.source, topology.exchanges)}
        ends["destination"] = _reference(binding.kind, binding.target, getattr(topology, f"{binding.kind}s"))
        yield (
            f'\nresource "rabbitmq_binding" "{_identifier(binding.source)}_{number}" {{\n'
            f"  vhost            = {_string(vhost)}\n"
            f"  source           = {ends['source']}\n"
            f"  destination      = {ends['destination']}\n"
            f"  destination_type = {_string(binding.kind)}\n"
            f"  routing_key      = {_string(binding.routing_key)}\n}}"
        )


def _resource(kind: str, name: str, vhost: str, settings: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
    lines = [f"    {key} = {_string(value)}" for key, value in settings.items()]
    lines += ["    durable = true", "    auto_delete = false"]
    if arguments and kind == "queue":
        # Not `arguments`, whose values are all strings: RabbitMQ wants its TTL as a number.
        lines.append(f"    arguments_json = jsonencode({_object(arguments)})")
    elif arguments:
        lines.append(f"    arguments = {_object(arguments)}")
    body = "\n".join(lines)
    return (
        f'\nresource "rabbitmq_{kind}" "{_identifier(name)}" {{\n'
        f"  name  = {_string(name)}\n  vhost = {_string(vhost)}\n  settings {{\n{body}\n  }}\n}}"
    )


def _object(values: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{_string(key)} = {_string(value)}" for key, value in values.items()) + " }"


def _reference(kind: str, name: str, known: Mapping[str, Any]) -> str:
    return f"rabbitmq_{kind}.{_identifier(name)}.name" if name in known else _string(name)


def _string(value: object) -> str:
    """JSON's strings and numbers are HCL's, but for HCL's templates."""
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


def _identifier(name: str) -> str:
    return re.sub(r"^(?=[^A-Za-z_])", "_", re.sub(r"[^A-Za-z0-9_-]", "_", name))


def mermaid(topology: Topology) -> str:
    """A flow chart: exchanges round, queues as cylinders, dashed what RabbitMQ does without a binding."""
    lines = ["flowchart LR", *map(_edge, topology.bindings)]
    for queue in topology.queues.values():
        dead_letters = queue.arguments.get("x-dead-letter-exchange")
        if dead_letters is not None:
            lines.append(
                f'    {_node(queue.name, "queue")} -. "{queue.seconds:g} s" .-> {_node(str(dead_letters), "exchange")}'
            )
    for exchange in topology.exchanges.values():
        alternate = exchange.arguments.get("alternate-exchange")
        if alternate is not None:
            ends = _node(exchange.name, "exchange"), _node(alternate, "exchange")
            lines.append(f"    {ends[0]} -. no binding .-> {ends[1]}")
    return "\n".join(lines) + "\n"


def _node(name: str, kind: str) -> str:
    shape = '[("{}")]' if kind == "queue" else '(["{}"])'
    return f"{kind}_{_identifier(name)}".replace("-", "_") + shape.format(name.replace('"', "#quot;"))


def _edge(binding: Binding) -> str:
    label = f'|"{binding.routing_key}"|' if binding.routing_key else ""
    return f"    {_node(binding.source, 'exchange')} -->{label} {_node(binding.target, binding.kind)}"
