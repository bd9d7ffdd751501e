#!/bin/sh
# Clearing a policy with a message-ttl saves nothing that was published under it.
#
# Guess: a policy is in force as long as it is there, so that clearing it in time keeps the messages.
# Seen on 3.10.8, 4.0.5, 4.3.6, quorum and classic: each message gets the TTL when it comes in and keeps it: of five messages, the policy
#   cleared before they were due, none was left. And a policy that is set later does nothing to the five that were there before.
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
from urllib.parse import quote, urlsplit
import amqp, kombu

client = kombu.Connection(os.environ["AMQP_URL"])
connection = client.connection
channel = connection.channel()

def policy(method, name, **definition):
    url = urlsplit(os.environ["MANAGEMENT_URL"])
    body = {"pattern": f"^{name}$", "definition": definition, "apply-to": "queues"}
    address = f"{url.scheme}://{url.hostname}:{url.port}/api/policies/{quote(client.virtual_host, safe='')}/{name}"
    request = urllib.request.Request(address, json.dumps(body).encode() if definition else None, method=method)
    request.add_header("Content-Type", "application/json")
    request.add_header("Authorization", "Basic " + base64.b64encode(f"{url.username}:{url.password}".encode()).decode())
    urllib.request.urlopen(request).close()

def count(name):
    return channel.queue_declare(name, passive=True).message_count

left = {}
for kind in ("quorum", "classic"):
    for published in ("before the policy is cleared", "before the policy is set"):
        name = f"finding-{uuid.uuid4()}"
        channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-queue-type": kind})
        if published == "before the policy is cleared":
            policy("PUT", name, **{"message-ttl": 6000})
            time.sleep(2)
        for _ in range(5):
            channel.basic_publish_confirm(amqp.Message("", delivery_mode=2), "", name)
        if published == "before the policy is cleared":
            assert count(name) == 5
            policy("DELETE", name)
            time.sleep(8)
        else:
            policy("PUT", name, **{"message-ttl": 1000})
            time.sleep(5)
            policy("DELETE", name)
        left[kind, published] = count(name)
        channel.queue_delete(name)
print("RabbitMQ", connection.server_properties["version"], "of five are left:", left)
assert list(left.values()) == [0, 5, 0, 5]
END
venv/bin/python find.py
