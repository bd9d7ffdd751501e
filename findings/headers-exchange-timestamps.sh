#!/bin/sh
# A headers exchange of RabbitMQ 4 no longer matches a timestamp with the same timestamp.
#
# Guess: equal values of the same type match, a date as well as a number.
# Seen with py-amqp, which writes the same bytes for both: texts, numbers, fractions, booleans and tables match on 3.10.8, 4.0.5 and
#   4.3.6; a datetime matches on 3.10.8 alone. On 4 a message with it goes nowhere: its date is compared in milliseconds, the binding's
#   in seconds. A binding to a number of milliseconds gets it, as one to the number of seconds did on 3.10; and a binding to the date
#   still gets a message with the number of seconds.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check kombu==5.7.0 amqp==5.4.2

cat >find.py <<'END'
import os, time, uuid
from datetime import datetime
import kombu

date = datetime(2025, 1, 1)
values = {"text": "a", "number": 7, "fraction": 1.5, "boolean": True, "table": {"a": 1}, "date": date}
seconds = 1735689600
with kombu.Connection(os.environ["AMQP_URL"]) as connection:
    channel = connection.default_channel
    name = f"finding-{uuid.uuid4().hex}"
    channel.exchange_declare(name, "headers", durable=True, auto_delete=False)

    def arrives(bound, sent):
        channel.queue_declare(name, durable=True, auto_delete=False)
        channel.queue_bind(name, name, arguments={"x-match": "all", "key": bound})
        kombu.Producer(channel).publish({}, "", exchange=name, headers={"key": sent})
        time.sleep(0.3)
        return channel.queue_delete(name) == 1

    seen = {kind: arrives(value, value) for kind, value in values.items()}
    seen |= {"seconds for a date": arrives(date, seconds), "a date for seconds": arrives(seconds, date)}
    seen |= {"a date for milliseconds": arrives(seconds * 1000, date)}
    channel.exchange_delete(name)
    version = channel.connection.server_properties["version"]
print("RabbitMQ", version)
for kind, matches in seen.items():
    print(f"{kind}:", "matches" if matches else "does not match")
matching = {kind for kind, matches in seen.items() if matches}
was = {"date", "a date for seconds"} if version.startswith("3.10.") else {"a date for milliseconds"}
assert matching == values.keys() - {"date"} | {"seconds for a date"} | was
END
venv/bin/python find.py
