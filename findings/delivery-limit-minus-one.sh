#!/bin/sh
# `x-delivery-limit: -1` means no limit on RabbitMQ 4, and a limit that the first requeue passes on RabbitMQ 3.10.
#
# Guess: 3.10, which has no limit unless one is set, refuses a negative one or takes it for none.
# Seen: all declare the queue. 4.0.5 and 4.3.6 gave a message back 26 times; 3.10.8 once: the first requeue drops it. So the argument
#   that keeps the old behaviour on 4 loses messages where the same program still meets 3.10.
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
name, n = f"finding-{uuid.uuid4()}", 0
arguments = {"x-queue-type": "quorum", "x-delivery-limit": -1}
channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
channel.basic_publish_confirm(amqp.Message("", delivery_mode=2), "", name)
while n < 26:
    for _ in range(40):
        message = channel.basic_get(name)
        if message:
            break
        time.sleep(0.05)
    else:
        break
    n += 1
    channel.basic_reject(message.delivery_tag, requeue=True)
channel.queue_delete(name)
print("RabbitMQ", version, "x-delivery-limit -1, taken:", n)
assert n == (1 if version < "4" else 26)
END
venv/bin/python find.py
