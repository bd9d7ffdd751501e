#!/bin/sh
# celery-batches runs tasks that expire, or are revoked, while they wait for their batch.
#
# Guess: it leaves them out, as a Celery worker leaves out what expires or is revoked while it waits for its turn in the worker.
# Seen with celery-batches 0.11, Celery 5.6.3: `expires=1` and a batch after three seconds: the batch has it, and one that
#   was revoked meanwhile. A task without Batches that expires behind another one, in the same worker, does not run.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery-batches==0.11 celery==5.6.3 kombu==5.7.0

cat >find.py <<'END'
import os, time, uuid
from importlib.metadata import version
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_batches import Batches

app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.update(task_default_queue=f"finding-{uuid.uuid4().hex}", worker_hijack_root_logger=False, worker_prefetch_multiplier=100)
batched, alone = [], []

@app.task(base=Batches, flush_every=100, flush_interval=3, name="batch")
def batch(requests):
    batched.extend(request.args[0] for request in requests)

@app.task(name="single")
def single(what, seconds=0):
    alone.append(what)
    time.sleep(seconds)

with start_worker(app, pool="solo", loglevel="CRITICAL", perform_ping_check=False, shutdown_timeout=30):
    time.sleep(1)
    revoked = batch.delay("revoked")
    batch.delay("plain")
    batch.apply_async(("expires after 1 s",), expires=1)
    time.sleep(0.5)
    app.control.revoke(revoked.id)
    time.sleep(5)
    single.delay("first", 3)
    single.delay("plain")
    single.apply_async(("expires after 1 s",), expires=1)
    time.sleep(6)
with app.connection() as connection:
    connection.default_channel.queue_delete(app.conf.task_default_queue)
print("celery-batches", version("celery-batches"), "Celery", version("celery"))
print("with Batches:", batched)
print("without:", alone)
assert batched == ["revoked", "plain", "expires after 1 s"]
assert alone == ["first", "plain"]
END
venv/bin/python find.py
