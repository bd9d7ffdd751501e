#!/bin/sh
# Kombu writes into the headers that its caller gave: one compressed message, and all later ones with those headers cannot be read.
#
# Guess: `publish` leaves a dictionary that it is given alone, as it does with `properties`; without `compression=` it sends plain text.
# Seen with Kombu 5.7.0: the first `publish(headers=headers, compression="zlib")` leaves "compression" in `headers`; the second, without
#   compression, sends it along with a body that is not compressed, and whoever takes the message gets an error in place of it.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0

cat >find.py <<'END'
import os, uuid
import kombu

print("Kombu", kombu.__version__)
headers = {"tenant": "a"}
with kombu.Connection(os.environ["AMQP_URL"]) as connection:
    queue = connection.SimpleQueue(f"finding-{uuid.uuid4().hex}")
    try:
        publish = connection.Producer().publish
        publish({"long": "x" * 1000}, queue.queue.name, headers=headers, compression="zlib")
        print("after the first, the caller's headers:", headers)
        publish({"short": 1}, queue.queue.name, headers=headers)
        queue.get(timeout=5).ack()
        print("the first was read")
        try:
            payload = queue.get(timeout=5).payload
        except Exception as exc:
            payload = exc
        print("the second:", repr(payload))
    finally:
        queue.close()
        connection.default_channel.queue_delete(queue.queue.name)
assert headers == {"tenant": "a", "compression": "application/x-gzip"}
assert isinstance(payload, Exception)
END
venv/bin/python find.py
