#!/bin/sh
# On RabbitMQ 4.3, messages that wait for a delayed retry fill a queue with x-max-length, which then drops each new message at once.
#
# Guess: the limit counts ready messages, as its documentation has it, so those that wait do not; and if they do, then the oldest go, for
#   x-overflow is drop-head.
# Seen with x-max-length 2 and two messages that wait: on 4.3.6 a passive declare counts 0 messages, and of three new ones none stays; the
#   two come back when their wait is over. 4.0.5 and 3.10.8, which have no delayed retries, drop the two and the first of the three.
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
queue = f"finding-{uuid.uuid4().hex}"
channel.queue_declare(queue, durable=True, arguments={
    "x-queue-type": "quorum", "x-max-length": 2, "x-delayed-retry-type": "all", "x-delayed-retry-min": 4000,
})

def publish(*bodies):
    for body in bodies:
        channel.basic_publish("", queue, body.encode())
    time.sleep(0.5)

def count():
    return channel.queue_declare(queue, passive=True).method.message_count

def take():
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0]:
        bodies.append(got[2].decode())
    return bodies

publish("old 1", "old 2")
tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
for tag in tags:
    channel.basic_reject(tag, requeue=True)
time.sleep(0.5)
print("RabbitMQ", version)
waiting = count()
print("after the two were rejected, messages:", waiting)
publish("new 1", "new 2", "new 3")
at_once = take()
print("after three more, in the queue:", at_once)
time.sleep(6)
later = take()
print("six seconds later:", later)
channel.queue_delete(queue)
connection.close()
if version.startswith("4.3."):
    assert (waiting, at_once, later) == (0, [], ["old 1", "old 2"])
else:
    assert (waiting, at_once, later) == (2, ["new 2", "new 3"], [])
END
venv/bin/python find.py
