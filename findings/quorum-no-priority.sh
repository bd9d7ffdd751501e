#!/bin/sh
# In a quorum queue of RabbitMQ 4.3, a message without a priority overtakes one with priority 0 to 3, and Kombu gives 0 to all of its own.
#
# Guess: no priority is the same as 0, as in a classic queue, so that programs which never set one take turns.
# Seen, published first by Kombu 5.7.0 (whose `publish` has priority=0, as has a Celery task), and then by pika 1.4.4:
#   quorum 4.3.6: no priority counts as 4: pika's message comes before Kombu's, and before one of Kombu with priority=3
#   quorum 4.0.5, 3.10.8, and classic with x-max-priority on all: pika's does not come before Kombu's
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2 pika==1.4.4

cat >find.py <<'END'
import os, time, uuid
import kombu, pika

url = os.environ["AMQP_URL"]
seen = {}
with kombu.Connection(url) as connection:
    channel = connection.default_channel
    version = channel.connection.server_properties["version"]
    other = pika.BlockingConnection(pika.URLParameters(url[:-1] + "%2F" if url.endswith("//") else url))
    for kind, arguments in ("classic", {"x-max-priority": 10}), ("quorum", {"x-queue-type": "quorum"}):
        name = f"finding-{uuid.uuid4().hex}"
        channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
        producer = kombu.Producer(channel)
        producer.publish("Kombu", name)
        producer.publish("Kombu with 3", name, priority=3)
        time.sleep(0.5)
        other.channel().basic_publish("", name, b'"pika"', pika.BasicProperties(content_type="application/json"))
        time.sleep(0.5)
        order = []
        while message := channel.basic_get(name, no_ack=True):
            order.append(message.body.strip('"') if isinstance(message.body, str) else bytes(message.body).decode().strip('"'))
        channel.queue_delete(name)
        seen[kind] = order
    other.close()
print("RabbitMQ", version)
for kind, order in seen.items():
    print(f"{kind}:", ", ".join(order))
first = ["Kombu", "Kombu with 3", "pika"]
assert seen == {
    "classic": ["Kombu with 3", "Kombu", "pika"],
    "quorum": ["pika", "Kombu with 3", "Kombu"] if version.startswith("4.3.") else first,
}
END
venv/bin/python find.py
