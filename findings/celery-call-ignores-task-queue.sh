#!/bin/sh
# `celery call` sends a task to the default queue, whatever queue the task names.
#
# Guess: `celery -A app call NAME` sends a task where `apply_async` of the same app sends it: to the queue of its decorator.
# Seen with Celery 5.7.0: it goes to the default queue, also where the app itself registers the task, not just a module of `include`.
#   A beat's entry for the same name goes to the task's own queue. Only `task_routes` leads both to one.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0

cat >shop.py <<'END'
import os
from celery import Celery

name = os.environ["FINDING"]
app = Celery("shop", broker=os.environ["AMQP_URL"], include=["later"])
app.conf.update(task_default_queue=f"{name}-default", beat_schedule_filename=f"{name}.beat")

@app.task(name="own", queue=f"{name}-own")
def own():
    pass
END
cat >later.py <<'END'
from shop import app, name

@app.task(name="included", queue=f"{name}-included")
def included():
    pass
END
cat >find.py <<'END'
import subprocess, sys
import celery
from celery.beat import ScheduleEntry, Scheduler
from shop import app, name
import later

print("Celery", celery.__version__)
QUEUES = [f"{name}-{which}" for which in ("default", "own", "included")]

def counts(channel):
    def count(queue):
        return channel.queue_declare(queue, durable=True, auto_delete=False).message_count
    return dict(zip(("default", "own", "included"), map(count, QUEUES)))

with app.connection() as connection:
    channel = connection.default_channel
    seen = {}
    def note(what):
        seen[what] = counts(channel)
        for queue in QUEUES:
            channel.queue_purge(queue)
        print(f"{what}:", seen[what])
    counts(channel)
    app.tasks["own"].apply_async()
    app.tasks["included"].apply_async()
    note("apply_async of each")
    for task in ("own", "included"):
        subprocess.run([sys.executable, "-m", "celery", "-A", "shop", "call", task], check=True, stdout=subprocess.DEVNULL)
    note("celery call of each")
    scheduler = Scheduler(app, lazy=True)
    for task in ("own", "included"):
        scheduler.apply_async(ScheduleEntry(task, task, schedule=60, app=app))
    note("an entry of a beat for each")
    for queue in QUEUES:
        channel.queue_delete(queue)
each = {"default": 0, "own": 1, "included": 1}
assert seen["apply_async of each"] == seen["an entry of a beat for each"] == each
assert seen["celery call of each"] == {"default": 2, "own": 0, "included": 0}
END
FINDING="finding-$(date +%s)-$$" venv/bin/python find.py
