#!/bin/sh
# In a quorum queue of RabbitMQ 4.0 a message outlives the queue's TTL as long as messages of a priority above 4 come in.
#
# Guess: a queue's TTL is the same for all its messages, so the oldest is due first, and each is gone when its time is over. If not,
#   then any higher priority holds up the others, as in a classic queue.
# Seen (TTL 0.7 s; five messages without a priority, then one every 0.2 s with a priority for three seconds; the last of the five was
#   dead-lettered after):
#   quorum 4.0.5: priority 4 0.8 s, priority 5 2.8 s
#   quorum 3.10.8, 4.3.6: 0.8 s
#   classic, x-max-priority 10, all releases: more than 3 s, whatever the priority
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

def declare(kind, **arguments):
    name = f"finding-{uuid.uuid4()}"
    channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-queue-type": kind, **arguments})
    return name

last = {}
for kind, priority in (("quorum", 4), ("quorum", 5), ("classic", 4)):
    due = declare("classic")
    arguments = {"x-message-ttl": 700, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": due}
    name = declare(kind, **arguments, **({"x-max-priority": 10} if kind == "classic" else {}))
    start = sent = time.time()
    for _ in range(5):
        channel.basic_publish_confirm(amqp.Message("normal", delivery_mode=2), "", name)
    seen = 0
    while seen < 5 and time.time() < start + 20:
        if time.time() > sent + 0.2 and time.time() < start + 3:
            sent = time.time()
            channel.basic_publish_confirm(amqp.Message("high", delivery_mode=2, priority=priority), "", name)
        message = channel.basic_get(due, no_ack=True)
        if message and message.body == "normal":
            seen, last[kind, priority] = seen + 1, round(time.time() - start, 1)
        time.sleep(0.01)
    channel.queue_delete(name)
    channel.queue_delete(due)
print("RabbitMQ", version, "seconds until the last of five with a TTL of 0.7 s:", last)
held_up = {key for key, seconds in last.items() if seconds > 2}
assert held_up == {("classic", 4)} | ({("quorum", 5)} if "4.0" <= version < "4.3" else set())
END
venv/bin/python find.py
