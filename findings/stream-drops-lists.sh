#!/bin/sh
# A stream drops a message's headers that are lists or tables, such as a Celery task's `timelimit` and `stamps`.
#
# Guess: what is published over AMQP 0-9-1 and read over AMQP 0-9-1 has the headers that it was published with, as from any other queue;
#   if not, a header's name has nothing to do with it.
# Seen on 3.10.8: of the headers, those that are lists or tables are gone. 4.0.5, 4.3.6: gone too, unless the name begins with "x-".
#   Numbers, texts, dates, None and all properties arrive, and a quorum queue keeps every header. Nothing says that any were dropped.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2

cat >find.py <<'END'
import os, time, uuid
from datetime import datetime
import kombu

headers = {
    "text": "a", "number": 5, "half": 1.5, "none": None, "yes": True, "date": datetime(2025, 1, 1),
    "timelimit": [50, 40], "stamps": {"tenant": "a"}, "x-list": [1], "x-table": {"a": 1},
}
seen = {}
with kombu.Connection(os.environ["AMQP_URL"]) as connection:
    connection.connect()
    version = connection.default_channel.connection.server_properties["version"]
    for kind in ("quorum", "stream"):
        queue = kombu.Queue(
            f"finding-{uuid.uuid4().hex}",
            queue_arguments={"x-queue-type": kind},
            consumer_arguments={"x-stream-offset": "first"} if kind == "stream" else None,
        )
        got = []
        with connection.channel() as channel:
            queue(channel).declare()
            kombu.Producer(channel).publish({}, queue.name, headers=headers)
            consumer = kombu.Consumer(channel, [queue], prefetch_count=1)
            consumer.register_callback(lambda body, message: got.append(message.headers) or message.ack())
            with consumer:
                deadline = time.monotonic() + 10
                while not got and time.monotonic() < deadline:
                    connection.drain_events(timeout=10)
        connection.default_channel.queue_delete(queue.name)
        assert all(got[0][name] == headers[name] for name in headers if name in got[0])
        seen[kind] = [name for name in headers if name not in got[0]]
print("RabbitMQ", version)
for kind, lost in seen.items():
    print(f"{kind}: lost:", *lost or ["nothing"])
lost = ["timelimit", "stamps"] + (["x-list", "x-table"] if version.startswith("3.10.") else [])
assert seen == {"quorum": [], "stream": lost}
END
venv/bin/python find.py
