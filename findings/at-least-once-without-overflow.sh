#!/bin/sh
# A quorum queue that asks for at-least-once dead-lettering gets at-most-once, silently, unless it also says overflow: reject-publish.
#
# Guess: the strategy is what the argument says, or the declaration is refused; overflow matters to queues with a max-length.
# Seen on 3.10.8, 4.0.5, 4.3.6: without x-overflow, which is drop-head, the declaration succeeds, and an expired message whose
#   dead-letter queue does not exist is gone. With reject-publish the queue keeps it, although it has no max-length.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
export MANAGEMENT_URL="${MANAGEMENT_URL:-http://guest:guest@localhost:15672}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2

cat >find.py <<'END'
import json, os, time, urllib.request, uuid
from urllib.parse import quote, urlsplit
import amqp, base64, kombu

client = kombu.Connection(os.environ["AMQP_URL"])
connection = client.connection
channel = connection.channel()

def messages(name):
    url = urlsplit(os.environ["MANAGEMENT_URL"])
    vhost = quote(client.virtual_host, safe="")
    request = urllib.request.Request(f"{url.scheme}://{url.hostname}:{url.port}/api/queues/{vhost}/{name}")
    request.add_header("Authorization", "Basic " + base64.b64encode(f"{url.username}:{url.password}".encode()).decode())
    return json.load(urllib.request.urlopen(request)).get("messages")

kept = {}
for overflow in (None, "reject-publish"):
    name = f"finding-{uuid.uuid4()}"
    arguments = {"x-queue-type": "quorum", "x-message-ttl": 200, "x-dead-letter-strategy": "at-least-once",
                 "x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"no-{name}"}
    if overflow:
        arguments["x-overflow"] = overflow
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
    channel.basic_publish_confirm(amqp.Message("", delivery_mode=2), "", name)
    time.sleep(13)  # the management's counts are up to five seconds old
    kept[overflow] = messages(name)
    channel.queue_delete(name)
print("RabbitMQ", connection.server_properties["version"], "kept, by overflow:", kept)
assert kept == {None: 0, "reject-publish": 1}
END
venv/bin/python find.py
