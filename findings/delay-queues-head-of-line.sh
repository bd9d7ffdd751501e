#!/bin/sh
# taskiq-aio-pika and dramatiq-kombu-broker let one long delay hold up all shorter ones behind it.
#
# Guess: each task is in its work queue when its own delay is over.
# Seen with taskiq-aio-pika 0.6.1 and dramatiq-kombu-broker 0.3.0, RabbitMQ 4.3.6: both give each message a TTL of its own in one queue,
#   and RabbitMQ expires from the head alone. Sent with 8 s and then 1 s, both are in the work queue after 8 s. (A worker of
#   dramatiq-kombu-broker takes them from there before, and holds them itself.)
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check dramatiq==2.2.1 dramatiq-kombu-broker==0.3.0 taskiq-aio-pika==0.6.1

cat >find.py <<'END'
import asyncio, os, time, uuid
import dramatiq, kombu
from dramatiq_kombu_broker import ConnectionPooledKombuBroker
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

url = os.environ["AMQP_URL"]
name = f"finding-{uuid.uuid4()}"
connection = kombu.Connection(url).connection
channel = connection.channel()

def arrivals(queue, start):
    after = []
    while len(after) < 2 and time.time() < start + 20:
        count = channel.queue_declare(queue, passive=True).message_count
        after += (count - len(after)) * [round(time.time() - start, 1)]
        time.sleep(0.05)
    return after

async def taskiq():
    broker = AioPikaBroker(
        url, exchange=Exchange(name=name), task_queues=[Queue(name=name)], delay_queue=Queue(name=f"{name}.delay"),
        dead_letter_queue=Queue(name=f"{name}.dead"),
    )
    note = broker.register_task(lambda: None, task_name="note")
    await broker.startup()
    start = time.time()
    for delay in (8, 1):
        await note.kicker().with_labels(delay=delay).kiq()
    await broker.shutdown()
    return start

seen = {"taskiq-aio-pika": arrivals(name, asyncio.run(taskiq()))}

dramatiq.set_broker(ConnectionPooledKombuBroker(kombu_connection_options={"hostname": url}))
note = dramatiq.actor(lambda: None, actor_name="note", queue_name=f"{name}-d")
start = time.time()
for delay in (8000, 1000):
    note.send_with_options(delay=delay)
seen["dramatiq-kombu-broker"] = arrivals(f"{name}-d", start)
for queue in (name, f"{name}.delay", f"{name}.dead", f"{name}-d", f"{name}-d.DQ", f"{name}-d.XQ"):
    channel.queue_delete(queue)
channel.exchange_delete(name)
print("RabbitMQ", connection.server_properties["version"], "sent with 8 s and 1 s, in the work queue after:", seen)
assert all(len(after) == 2 and after[0] >= 7.5 for after in seen.values())
END
venv/bin/python find.py
