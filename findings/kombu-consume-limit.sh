#!/bin/sh
# The limit of Kombu's `ConsumerMixin.consume`, and of Celery's `Receiver.capture`, counts seconds without a message as messages.
#
# Guess: `consume(limit=3, timeout=10)` ends after three messages, or when none has come for ten seconds.
# Seen with Kombu 5.7.0: with the first message after two and a half seconds, it ends after that one: each second in which nothing came
#   was one of the three. Without a limit, the ten seconds hold.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0

cat >find.py <<'END'
import os, threading, time, uuid
import kombu
from kombu.mixins import ConsumerMixin

url = os.environ["AMQP_URL"]
queue = kombu.Queue(f"finding-{uuid.uuid4().hex}")
got = []

class Reader(ConsumerMixin):
    def __init__(self, connection):
        self.connection = connection

    def get_consumers(self, Consumer, channel):
        return [Consumer([queue], callbacks=[lambda body, message: got.append(body) or message.ack()])]

def publish():
    with kombu.Connection(url) as connection:
        for number in range(3):
            time.sleep(2.5 if number == 0 else 0.3)
            connection.Producer().publish(number, queue.name)

print("Kombu", kombu.__version__)
with kombu.Connection(url) as connection:
    queue(connection.default_channel).declare()
    thread = threading.Thread(target=publish)
    thread.start()
    start = time.monotonic()
    for _ in Reader(connection).consume(limit=3, timeout=10):
        pass
    print(f"consume(limit=3, timeout=10) ended after {time.monotonic() - start:.1f} s with {len(got)} of three messages")
    thread.join()
    connection.default_channel.queue_delete(queue.name)
assert len(got) == 1
END
venv/bin/python find.py
