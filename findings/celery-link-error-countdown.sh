#!/bin/sh
# Whether Celery keeps an errback's countdown depends on how many arguments its function takes.
#
# Guess: `link_error=after.s().set(countdown=4)` runs four seconds after the failure, as `link=` does; once one was seen to run at
#   once: then all do.
# Seen with Celery 5.7.0: one that takes (request, exc, traceback) is called at once, by the process of the failed task, whatever its
#   countdown; one that takes the id alone is sent as a task, and keeps it.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0

cat >find.py <<'END'
import os, time, uuid
from celery import Celery
from celery.contrib.testing.worker import start_worker

queue = f"finding-{uuid.uuid4()}"
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.update(task_default_queue=queue, worker_hijack_root_logger=False)
ended, ran = {}, {}

@app.task(name="work")
def work(name):
    ended[name] = time.time()
    if name != "link":
        raise ValueError(name)

@app.task(name="linked")
def linked(result): ran["link"] = time.time()

@app.task(name="of three")
def of_three(request, exc, traceback): ran["errback of three"] = time.time()

@app.task(name="of one")
def of_one(task_id): ran["errback of one"] = time.time()

with start_worker(app, pool="solo", loglevel="CRITICAL", perform_ping_check=False):
    work.apply_async(("link",), link=linked.s().set(countdown=4))
    work.apply_async(("errback of three",), link_error=of_three.s().set(countdown=4))
    work.apply_async(("errback of one",), link_error=of_one.s().set(countdown=4))
    time.sleep(9)
with app.connection() as connection:
    connection.default_channel.queue_delete(queue)
    connection.default_channel.exchange_delete(queue)
after = {name: round(ran[name] - ended[name], 1) if name in ran else None for name in ended}
print("countdown=4; seconds from the end of the task:", after)
assert after["link"] >= 4 and after["errback of three"] < 2 and after["errback of one"] >= 4
END
venv/bin/python find.py
