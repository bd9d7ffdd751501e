#!/bin/sh
# With Celery's native delayed delivery, a task for the queue `emails.high` runs in the queue `high` as well, delayed or not.
#
# Guess: a task goes to the queue that it was sent to; once a delayed one was seen to run twice: only delayed ones do.
# Seen with Celery 5.7.0, Kombu 5.7.0: a worker binds each quorum queue to its own exchange with `#.` before its key, so whoever's key
#   ends in the words of another's is in both queues. Of two tasks, without a delay and with one, each ran twice.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0

cat >find.py <<'END'
import os, time, uuid
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Exchange, Queue

high = f"high{uuid.uuid4().hex[:8]}"
exchange = Exchange(f"finding-{high}", type="topic")
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.task_queues = [
    Queue(name, exchange, routing_key=name, queue_arguments={"x-queue-type": "quorum"}) for name in (high, f"emails.{high}")
]
app.conf.update(task_default_queue=high, worker_hijack_root_logger=False)
runs = {"without a delay": [], "countdown=2": []}

@app.task(bind=True, name="note")
def note(self, what):
    runs[what].append(self.request.delivery_info["routing_key"].count("emails"))

with start_worker(app, pool="solo", loglevel="CRITICAL", perform_ping_check=False):
    note.apply_async(("without a delay",), queue=f"emails.{high}")
    note.apply_async(("countdown=2",), queue=f"emails.{high}", countdown=2)
    time.sleep(8)
with app.connection() as connection:
    for queue in app.conf.task_queues:
        connection.default_channel.queue_delete(queue.name)
    connection.default_channel.exchange_delete(exchange.name)
counts = {what: len(ran) for what, ran in runs.items()}
print("one task each, sent to emails.high; runs:", counts)
assert counts == {"without a delay": 2, "countdown=2": 2}
END
venv/bin/python find.py
