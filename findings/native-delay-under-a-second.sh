#!/bin/sh
# With quorum queues, Celery cannot send a task with a countdown of less than a second, nor with an eta that is a second away.
#
# Guess: it runs at once, or after that fraction, which the worker waits for as it does with 1.5 s.
# Seen with Celery 5.7.0, Kombu 5.7.0: its native delayed delivery rounds to whole seconds and then refuses 0: "countdown must be a positive
#   number". An eta of now and a second is 0.99 s away when it gets there. 0, -1, 1.5 and, with classic queues, 0.5 are all accepted.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0

cat >find.py <<'END'
import os, uuid
from datetime import datetime, timedelta, timezone
import celery
from celery import Celery
from kombu import Exchange, Queue
from kombu.transport.native_delayed_delivery import declare_native_delayed_delivery_exchanges_and_queues

print("Celery", celery.__version__)
seen = {}
for kind in ("classic", "quorum"):
    name = f"finding-{uuid.uuid4().hex}"
    app = Celery("finding", broker=os.environ["AMQP_URL"])
    queue = Queue(name, Exchange(name, type="topic"), routing_key=name, queue_arguments={"x-queue-type": kind})
    app.conf.update(task_queues=[queue], task_default_queue=name)
    with app.connection() as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")  # as a worker does when it starts
    options = [{"countdown": seconds} for seconds in (-1, 0, 0.5, 1, 1.5)]
    options.append({"eta": datetime.now(timezone.utc) + timedelta(seconds=1)})
    for option in options:
        try:
            app.send_task("finding", **option)
            answer = "sent"
        except Exception as exc:
            answer = f"{type(exc).__name__}: {exc}"
        seen[kind, option.get("countdown", "eta")] = answer.partition(":")[0]
        print(f"{kind}: {option}: {answer}")
    with app.connection() as connection:
        connection.default_channel.queue_delete(name)
        connection.default_channel.exchange_delete(name)
refused = {key for key, answer in seen.items() if answer != "sent"}
assert refused == {("quorum", 0.5), ("quorum", "eta")} and {seen[key] for key in refused} == {"ValueError"}
END
venv/bin/python find.py
