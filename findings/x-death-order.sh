#!/bin/sh
# The header x-death is not in the order of the deaths on RabbitMQ 3.10: each death turns the entries of the earlier ones round.
#
# Guess: the latest death first, the one before it second, and so on.
# Seen after the message died in the queues A, B, C and again in A:
#   4.0.5, 4.3.6: A C B, and before the second death in A it was C B A
#   3.10.8: A B C, and before C A B
#   So only the first entry can be relied on to find out where a message comes from.
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
run = uuid.uuid4()
names = [f"finding-{run}-{letter}" for letter in "ABC"]
for name, to in zip(names, [*names[1:], names[0]]):
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
channel.basic_publish_confirm(amqp.Message("", delivery_mode=2), "", names[0])
orders = []
for name in [*names, names[0], names[1]]:
    message = None
    while message is None:
        message = channel.basic_get(name)
        time.sleep(0.01)
    orders.append(" ".join(death["queue"][-1] for death in (message.headers or {}).get("x-death", ())))
    channel.basic_reject(message.delivery_tag, requeue=False)
for name in names:
    channel.queue_delete(name)
print("RabbitMQ", version, "x-death before the first death, and after each:", orders)
assert orders == ["", "A", "B A", *(("C A B", "A B C") if version < "4" else ("C B A", "A C B"))]
END
venv/bin/python find.py
