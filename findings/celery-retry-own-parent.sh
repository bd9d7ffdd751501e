#!/bin/sh
# A Celery task that nobody's task sent becomes its own parent when it retries, and loses its message's own properties.
#
# Guess: a retry is the same task: the same id, parent, root and headers, and the correlation_id, message_id and app_id that it was sent
#   with; only `retries` and the eta change.
# Seen with Celery 5.7.0: id, root, headers, stamps, priority and expires stay. The parent, None before, is the task's own id, a
#   loop for whoever follows parents up to the root. The correlation_id is the task's id, message_id and app_id are gone.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0

cat >find.py <<'END'
import os, time, uuid
import celery
from celery import Celery
from celery.contrib.testing.worker import start_worker

print("Celery", celery.__version__)
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.update(task_default_queue=f"finding-{uuid.uuid4().hex}", worker_hijack_root_logger=False)
runs = []

@app.task(bind=True, name="note")
def note(self):
    request = self.request
    ours = {name: request.properties.get(name) for name in ("correlation_id", "message_id", "app_id")}
    parent = "itself" if request.parent_id == request.id else request.parent_id
    runs.append({"id": request.id, "root": request.root_id, "parent": parent, "tenant": request.headers["tenant"], **ours})
    if not request.retries:
        raise self.retry(countdown=1)

with start_worker(app, pool="solo", loglevel="CRITICAL", perform_ping_check=False, shutdown_timeout=30):
    id = note.apply_async(headers={"tenant": "t"}, correlation_id="c", message_id="m", app_id="a").id
    deadline = time.monotonic() + 20
    while len(runs) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
with app.connection() as connection:
    connection.default_channel.queue_delete(app.conf.task_default_queue)
for what, run in zip(("sent", "retried"), runs, strict=True):
    print(f"{what}:", run)
same = {"id": id, "root": id, "tenant": "t"}
assert runs[0] == {**same, "parent": None, "correlation_id": "c", "message_id": "m", "app_id": "a"}
assert runs[1] == {**same, "parent": "itself", "correlation_id": id, "message_id": None, "app_id": None}
END
venv/bin/python find.py
