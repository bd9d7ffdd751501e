#!/bin/sh
# With `--pool threads`, Celery runs tasks that expire, or are revoked, while they wait in the worker for a thread.
#
# Guess: the pool makes no difference: as with prefork, what has expired or was revoked does not start.
# Seen with Celery 5.7.0, one thread or process that is busy for four seconds, and behind it a task with `expires=1` and one that is
#   revoked: prefork runs neither, threads run both.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0

cat >tasks.py <<'END'
import os, time
from celery import Celery

app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.update(task_default_queue=os.environ["FINDING_QUEUE"], worker_prefetch_multiplier=100)

@app.task
def note(what, seconds=0):
    with open(os.environ["FINDING_QUEUE"], "a") as file:
        print(what, file=file)
    time.sleep(seconds)
END
cat >find.py <<'END'
import os, pathlib, subprocess, sys, time, uuid
import celery

print("Celery", celery.__version__)
seen = {}
for pool in ("prefork", "threads"):
    queue = os.environ["FINDING_QUEUE"] = f"finding-{uuid.uuid4().hex}"
    sys.modules.pop("tasks", None)
    from tasks import app, note

    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", pool, "-c", "1", "-l", "CRITICAL", "-n", f"{queue}@%h"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        note.delay("first", 4)
        file = pathlib.Path(queue)
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        note.apply_async(("expires after 1 s",), expires=1)
        revoked = note.delay("revoked")
        note.delay("plain")
        time.sleep(0.5)
        app.control.revoke(revoked.id)
        time.sleep(6)
    finally:
        worker.terminate()
        worker.wait(60)
    seen[pool] = file.read_text().splitlines()
    print(f"{pool}: ran:", ", ".join(seen[pool]))
    with app.connection() as connection:
        connection.default_channel.queue_delete(queue)
assert seen == {"prefork": ["first", "plain"], "threads": ["first", "expires after 1 s", "revoked", "plain"]}
END
venv/bin/python find.py
