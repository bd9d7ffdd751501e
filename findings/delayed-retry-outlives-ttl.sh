#!/bin/sh
# On RabbitMQ 4.3 a message that waits for its delayed retry outlives its TTL, and the queue's, until the wait is over.
#
# Guess: the TTL runs on, and whichever is over first decides: a message is dead-lettered when it expires, as it is from a queue that
#   nobody reads.
# Seen with x-delayed-retry-min of 5 s and a TTL of 1.5 s, rejected with requeue at once: 4.3.6 dead-letters it after 5 s, with the reason
#   "expired", whether the TTL is the message's or the queue's. 4.0.5 and 3.10.8 have no delayed retries, ignore the argument, and do so
#   after 1.5 s.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check pika==1.4.4

cat >find.py <<'END'
import os, time, uuid
import pika

url = os.environ["AMQP_URL"]
connection = pika.BlockingConnection(pika.URLParameters(url[:-1] + "%2F" if url.endswith("//") else url))
version = connection._impl.server_properties["version"]
channel = connection.channel()
name = f"finding-{uuid.uuid4().hex}"
dead = f"{name}-dead"
channel.queue_declare(dead, durable=True)
seen = {}
for whose in ("message", "queue"):
    arguments = {
        "x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 5000,
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
    }
    channel.queue_declare(name, durable=True, arguments=arguments | ({"x-message-ttl": 1500} if whose == "queue" else {}))
    channel.basic_publish("", name, b"", pika.BasicProperties(expiration="1500" if whose == "message" else None))
    method = None
    while not method:
        method, _, _ = channel.basic_get(name)
    channel.basic_reject(method.delivery_tag, requeue=True)
    start, method = time.monotonic(), None
    while not method and time.monotonic() < start + 12:
        time.sleep(0.1)
        method, properties, _ = channel.basic_get(dead, auto_ack=True)
    seen[whose] = time.monotonic() - start
    assert properties.headers["x-death"][0]["reason"] == "expired"
    channel.queue_delete(name)
channel.queue_delete(dead)
connection.close()
print("RabbitMQ", version)
for whose, seconds in seen.items():
    print(f"TTL of the {whose}, 1.5 s: dead-lettered after {seconds:.1f} s")
low, high = (4.5, 8) if version.startswith("4.3.") else (1, 3.5)
assert all(low < seconds < high for seconds in seen.values())
END
venv/bin/python find.py
