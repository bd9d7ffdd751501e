#!/bin/sh
# Whether passive declares keep a queue with x-expires alive depends on its type.
#
# Guess: asking whether a queue exists does not use it, so that it goes; once a classic one was seen to stay: then so does any.
# Seen on 3.10.8, 4.0.5, 4.3.6: a classic queue that is declared passively every second, as a health check does or whoever wants its
#   length, outlives `x-expires` of 2.5 s; a quorum queue with the same check is gone. A real declare keeps both, a publish none.
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
name = f"finding-{uuid.uuid4().hex}"

def ask(queue, **options):
    channel = connection.channel()
    try:
        channel.queue_declare(queue, **options)
        channel.close()
        return True
    except pika.exceptions.ChannelClosedByBroker:
        return False

seen = {}
for kind in ("classic", "quorum"):
    declare = {"durable": True, "arguments": {"x-queue-type": kind, "x-expires": 2500}}
    queues = {what: f"{name}-{kind}-{what}" for what in ("declare", "passive declare", "publish")}
    for queue in queues.values():
        ask(queue, **declare)
    for _ in range(6):
        time.sleep(1)
        if not ask(queues["declare"], **declare):
            break
        ask(queues["passive declare"], passive=True)
        connection.channel().basic_publish("", queues["publish"], b"")
    for what, queue in queues.items():
        seen[kind, what] = ask(queue, passive=True)
        connection.channel().queue_delete(queue)
print("RabbitMQ", connection._impl.server_properties["version"])
for (kind, what), is_there in seen.items():
    print(f"{kind}, {what} every second: the queue is", "there" if is_there else "gone")
connection.close()
assert {key for key, is_there in seen.items() if is_there} == {
    ("classic", "declare"), ("classic", "passive declare"), ("quorum", "declare")
}
END
venv/bin/python find.py
