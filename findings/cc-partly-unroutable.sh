#!/bin/sh
# A mandatory message of which RabbitMQ can route one key and not another is not returned.
#
# Guess: RabbitMQ returns it for the key in CC that leads nowhere, as it returns a message that is sent there alone.
# Seen on 3.10.8, 4.0.5, 4.3.6: sent to a queue that exists, with one in CC that does not, it is confirmed and not returned. And an
#   exchange's alternate exchange does not get it for that key either. Sent to the missing queue alone, it is returned.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2

cat >find.py <<'END'
import os, uuid
import amqp, kombu

connection = kombu.Connection(os.environ["AMQP_URL"]).connection
channel = connection.channel()
returned = []
channel.events["basic_return"].add(lambda *arguments: returned.append(arguments))
name = f"finding-{uuid.uuid4()}"
channel.exchange_declare(f"{name}-others", "fanout", auto_delete=False)
channel.exchange_declare(name, "direct", auto_delete=False, arguments={"alternate-exchange": f"{name}-others"})
for queue, exchange in ((name, name), (f"{name}-others", f"{name}-others")):
    channel.queue_declare(queue, auto_delete=False, durable=True)
    channel.queue_bind(queue, exchange, "here")

def send(exchange, key, *cc):
    message = amqp.Message("", application_headers={"CC": list(cc)} if cc else {})
    channel.basic_publish_confirm(message, exchange, key, mandatory=True)

send("", name, f"no-{name}")
of_two = len(returned)
send("", f"no-{name}")
of_one = len(returned) - of_two
send(name, "here", "nowhere")
in_alternate = channel.queue_declare(f"{name}-others", passive=True).message_count
send(name, "nowhere")
in_alternate_alone = channel.queue_declare(f"{name}-others", passive=True).message_count - in_alternate
for each in (name, f"{name}-others"):
    channel.queue_delete(each)
    channel.exchange_delete(each)
seen = {"one of two": (of_two, in_alternate), "alone": (of_one, in_alternate_alone)}
print("RabbitMQ", connection.server_properties["version"], "a key that leads nowhere: returned, in the alternate exchange:", seen)
assert seen == {"one of two": (0, 0), "alone": (1, 1)}
END
venv/bin/python find.py
