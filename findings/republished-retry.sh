#!/bin/sh
# A retry that is published again with its headers vanishes in the second of two TTL queues on RabbitMQ 3.10, and counts from one on 4.
#
# A work queue's consumer publishes what failed, with the headers that it got, into a queue with a TTL that dead-letters into another
# one with a TTL (say, a long and a short wait), which dead-letters into the work queue.
# Guess: it comes back each time, and the counts in x-death say how often.
# Seen, first time and then published again three times:
#   3.10.8: back the first time; the second time it is in no queue: the header x-death of before makes it look like a cycle
#   4.0.5, 4.3.6: back each time, but x-death always says 1
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
long, short, work = (f"finding-{uuid.uuid4()}" for _ in range(3))
channel.queue_declare(work, durable=True, auto_delete=False)
for name, to in ((short, work), (long, short)):
    arguments = {"x-message-ttl": 200, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
headers, counts = {}, []
for _ in range(4):
    channel.basic_publish_confirm(amqp.Message("", delivery_mode=2, application_headers=headers), "", long)
    end, message = time.time() + 5, None
    while message is None and time.time() < end:
        message = channel.basic_get(work, no_ack=True)
    counts.append([death["count"] for death in message.headers["x-death"]] if message else None)
    if message is None:
        break
    headers = message.headers
left = sum(channel.queue_declare(name, passive=True).message_count for name in (long, short, work))
for name in (long, short, work):
    channel.queue_delete(name)
print("RabbitMQ", version, "counts in x-death, each time:", counts, "| left in the three queues:", left)
assert counts == ([[1, 1], None] if version < "4" else 4 * [[1, 1]]) and left == 0
END
venv/bin/python find.py
