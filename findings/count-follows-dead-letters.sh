#!/bin/sh
# On RabbitMQ 4.3 a quorum queue's count of deliveries follows a message through dead-lettering, and one requeue then ends it.
#
# The usual retry: a work queue dead-letters what is rejected into a queue with a TTL, and that back into the work queue.
# Guess: each time it arrives a message is new to the queue and has count 0, so that only requeues within one stay count.
# Seen with 25 such retries, and then one reject with requeue (limit 20, the default from 4.0 on):
#   4.3.6: header x-delivery-count 25; after the requeue the message is in none of the two queues
#     (when its dead letters went to a third queue by then, it was there, with the reason delivery_limit)
#   4.0.5: header 25, but only left over: after the requeue the message is back with count 1
#   3.10.8: header 0, after the requeue back with 1
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
work, wait = (f"finding-{uuid.uuid4()}" for _ in range(2))

def declare(name, **arguments):
    channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum", **arguments})

def take():
    end = time.time() + 5
    while time.time() < end:
        message = channel.basic_get(work)
        if message:
            return message
        time.sleep(0.02)

declare(work, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait})
declare(wait, **{"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
channel.basic_publish_confirm(amqp.Message("", delivery_mode=2), "", work)
for _ in range(25):
    channel.basic_reject(take().delivery_tag, requeue=False)
message = take()
before = message.headers.get("x-delivery-count")
channel.basic_reject(message.delivery_tag, requeue=True)
message = take()
after = message and message.headers["x-delivery-count"]
if message:
    channel.basic_ack(message.delivery_tag)
waiting = channel.queue_declare(wait, passive=True).message_count
for name in (work, wait):
    channel.queue_delete(name)
print("RabbitMQ", version, "x-delivery-count after 25 retries:", before, "| after a requeue:", after, "| in the other queue:", waiting)
assert (before, after, waiting) == ((0, 1, 0) if version < "4" else (25, 1, 0) if version < "4.3" else (25, None, 0))
END
venv/bin/python find.py
