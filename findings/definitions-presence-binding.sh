#!/bin/sh
# A headers exchange's binding that asks for a header's presence matches nothing any more once it was exported and imported.
#
# Guess: RabbitMQ's export of definitions, imported elsewhere, makes bindings that match the same messages.
# Seen on 3.10.8, 4.0.5, 4.3.6: void, which matches any value, is exported as the text "undefined", and then is that text. A list or
#   table with a number in it is exported right, and matches no more. The decimal 1.5 is exported as 1.15. Texts, numbers, fractions and
#   booleans match as before. The import succeeds.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
export MANAGEMENT_URL="${MANAGEMENT_URL:-http://guest:guest@localhost:15672}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2

cat >find.py <<'END'
import base64, json, os, time, urllib.request, uuid
from decimal import Decimal
from urllib.parse import urlsplit
import kombu

def api(method, path, body=None):
    url = urlsplit(os.environ["MANAGEMENT_URL"])
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url.scheme}://{url.hostname}:{url.port}/api/{path}", data, method=method)
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", "Basic " + base64.b64encode(f"{url.username}:{url.password}".encode()).decode())
    with urllib.request.urlopen(request) as response:
        text = response.read()
    return json.loads(text) if text else None

bound = {
    "present": None, "text": "a", "number": 7, "fraction": 1.5, "boolean": True,
    "list": [1, "a"], "table": {"a": 1}, "decimal": Decimal("1.5"),
}
sent = {**bound, "present": "anything"}
matches = {}

def look(vhost):
    """Return the kinds of which the message with the value that was bound arrives."""
    with kombu.Connection(os.environ["AMQP_URL"]) as connection:
        connection.virtual_host = vhost
        channel = connection.default_channel
        if vhost == old:
            channel.exchange_declare("headers", "headers", durable=True, auto_delete=False)
            for kind, value in bound.items():
                channel.queue_declare(kind, durable=True, auto_delete=False)
                channel.queue_bind(kind, "headers", arguments={"x-match": "all", kind: value})
        kombu.Producer(channel).publish({}, "", exchange="headers", headers=sent)
        time.sleep(0.5)
        return {kind for kind in bound if channel.queue_purge(kind) == 1}

old, new = vhosts = [f"finding-{uuid.uuid4().hex}" for _ in range(2)]
user = kombu.Connection(os.environ["AMQP_URL"]).userid
try:
    for vhost in vhosts:
        api("PUT", f"vhosts/{vhost}", {})
        api("PUT", f"permissions/{vhost}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
    before = look(old)
    definitions = api("GET", f"definitions/{old}")
    api("POST", f"definitions/{new}", definitions)
    after = look(new)
    print("RabbitMQ", api("GET", "overview")["rabbitmq_version"])
finally:
    for vhost in vhosts:
        api("DELETE", f"vhosts/{vhost}")
exported = {each["destination"]: each["arguments"][each["destination"]] for each in definitions["bindings"]}
for kind in bound:
    now = "matches" if kind in after else "does not match"
    print(f"{kind}: bound with {bound[kind]!r}, exported as {exported[kind]!r}; once imported, {now}")
assert before == set(bound)
assert after == {"text", "number", "fraction", "boolean"}
assert exported["present"] == "undefined" and exported["decimal"] == 1.15
END
venv/bin/python find.py
