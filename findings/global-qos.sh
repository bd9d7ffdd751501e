#!/bin/sh
# RabbitMQ 4.3 answers a global basic.qos with ok, and applies it to each consumer.
#
# Guess: what 4.3 has removed it refuses, as it refuses transient queues that are not exclusive.
# Seen: prefetch 1 for the channel, three consumers, nothing acknowledged; messages that came: 4.3.6 three, 3.10.8 and 4.0.5 one.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2

cat >find.py <<'END'
import os, time, uuid
import amqp, kombu

connection = kombu.Connection(os.environ["AMQP_URL"]).connection
version = connection.server_properties["version"]
channel = connection.channel()
name, got = f"finding-{uuid.uuid4()}", []
channel.queue_declare(name, durable=True, auto_delete=False)
for _ in range(6):
    channel.basic_publish_confirm(amqp.Message("", delivery_mode=2), "", name)
channel.basic_qos(0, 1, True)
for _ in range(3):
    channel.basic_consume(name, callback=got.append)
end = time.time() + 5
while time.time() < end:
    try:
        connection.drain_events(timeout=1)
    except TimeoutError:
        pass
channel.queue_delete(name)
print("RabbitMQ", version, "global prefetch 1, three consumers, unacknowledged:", len(got))
assert len(got) == (3 if version >= "4.3" else 1)
END
venv/bin/python find.py
