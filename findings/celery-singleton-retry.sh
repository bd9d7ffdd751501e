#!/bin/sh
# celery-singleton takes a task's own retry for a duplicate of that task.
#
# Guess: a task that calls `self.retry` runs again, and its lock is free once it has succeeded.
# Seen with celery-singleton 0.3.1, Celery 5.7.0: `retry` finds the lock that the running task holds, and publishes nothing.
#   The task never runs again, no queue has it, its lock stays, and every later equal call returns its id.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 celery-singleton==0.3.1

cat >find.py <<'END'
import os, time, uuid
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery_singleton import Singleton
from celery_singleton.backends.base import BaseBackend

class Locks(BaseBackend):
    "In memory, so that no Redis is needed: as its backend for Redis, it takes a lock that nobody has."
    held = {}
    def __init__(self, *args, **kwargs): pass
    def lock(self, lock, task_id, expiry=None):
        is_free = lock not in self.held
        self.held.setdefault(lock, task_id)
        return is_free
    def unlock(self, lock): self.held.pop(lock, None)
    def get(self, lock): return self.held.get(lock)
    def clear(self, key_prefix): self.held.clear()

queue = f"finding-{uuid.uuid4()}"
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.update(task_default_queue=queue, singleton_backend_class=Locks, worker_hijack_root_logger=False)
runs = []

@app.task(base=Singleton, bind=True, name="once")
def once(self):
    runs.append(self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0.5)

with start_worker(app, pool="solo", loglevel="CRITICAL", perform_ping_check=False):
    first = once.delay().id
    time.sleep(5)
    second = once.delay().id
    time.sleep(2)
with app.connection() as connection:
    connection.default_channel.queue_delete(queue)
    connection.default_channel.exchange_delete(queue)
print("runs:", runs, "| locks held:", len(Locks.held), "| the later call has the id of the first:", first == second)
assert runs == [0] and len(Locks.held) == 1 and first == second
END
venv/bin/python find.py
