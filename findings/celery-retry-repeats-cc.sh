#!/bin/sh
# A Celery task that was sent to two queues with RabbitMQ's CC header doubles with each retry.
#
# Guess: each of the two runs retries in its own queue, so three retries make eight runs.
# Seen with Celery 5.7.0: RabbitMQ leaves CC on the message, and Celery sends a message's headers again with a retry, so each copy
#   enters both queues again: two, four, eight, sixteen runs, thirty altogether.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0

cat >find.py <<'END'
import os, time, uuid
from collections import Counter
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Queue

name = f"finding-{uuid.uuid4()}"
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.task_queues = [Queue(f"{name}-{n}") for n in (1, 2)]
app.conf.update(task_default_queue=f"{name}-1", task_create_missing_queues=False, worker_hijack_root_logger=False)
runs = Counter()

@app.task(bind=True, name="note", max_retries=3)
def note(self):
    runs[self.request.retries] += 1
    if self.request.retries < 3:
        raise self.retry(countdown=0)

with start_worker(app, pool="solo", loglevel="CRITICAL", perform_ping_check=False):
    note.apply_async(queue=f"{name}-1", headers={"CC": [f"{name}-2"]})
    time.sleep(8)
with app.connection() as connection:
    for queue in app.conf.task_queues:
        connection.default_channel.queue_delete(queue.name)
        connection.default_channel.exchange_delete(queue.name)
print("runs by number of the retry:", dict(runs))
assert runs == {0: 2, 1: 4, 2: 8, 3: 16}
END
venv/bin/python find.py
