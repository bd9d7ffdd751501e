#!/bin/sh
# Celery shifts the times of events by as many hours as the worker's time zone is from that of whoever reads them.
#
# Guess: an event's timestamp is in seconds since 1970, the same everywhere, and arrives as it was sent.
# Seen with Celery 5.7.0: the sender adds its offset to UTC, and `Receiver`, which Flower and `celery events` use, adds the difference of
#   both to the timestamp. Read in UTC, what a process in New York does is five hours old (four in summer), in Kolkata five and a half
#   hours in the future. In the message itself the timestamp is right.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check celery==5.7.0 kombu==5.7.0

cat >find.py <<'END'
import os, subprocess, sys, time
os.environ["TZ"] = "UTC"
time.tzset()
import celery
from celery import Celery

print("Celery", celery.__version__)
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.event_exchange = f"finding-{os.getpid()}"
send = """
import os, sys
from celery import Celery
app = Celery("finding", broker=os.environ["AMQP_URL"])
app.conf.event_exchange = sys.argv[1]
with app.connection() as connection, app.events.Dispatcher(connection, hostname=os.environ["TZ"]) as dispatcher:
    dispatcher.send("task-finding", uuid="1")
"""
zones = {"UTC": 0, "EST5": -5, "IST-5:30": 5.5}
seen = {}

def handle(event):
    seen[event["hostname"]] = round((event["timestamp"] - event["local_received"]) / 3600, 1) + 0.0

def send_all(*_, **__):
    for zone in zones:
        subprocess.run([sys.executable, "-c", send, app.conf.event_exchange], env={**os.environ, "TZ": zone}, check=True)

with app.connection() as connection:
    receiver = app.events.Receiver(connection, handlers={"task-finding": handle})
    receiver.on_consume_ready = send_all
    events = receiver.itercapture(timeout=20)
    while len(seen) < len(zones):
        next(events)
    events.close()
    receiver.exchange(connection.default_channel).delete()
for zone, hours in seen.items():
    print(f"sent in {zone}, read in UTC at once: {hours} hours from now")
assert seen == zones
END
venv/bin/python find.py
