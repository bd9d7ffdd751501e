#!/bin/sh
# Aio-pika reads a date that is after 2106 as one in the seventies.
#
# Guess: a date in a header is the same at whoever reads it, at least if aio-pika wrote it as well; "valid until 9999-12-31" is valid.
# Seen with aio-pika 10.2.1 (pamqp 4.0.1), pika 1.4.4: it is sent right, and pika reads it right. Aio-pika takes more than 32 bits of
#   seconds for milliseconds: 9999-12-31 comes as 1978-01-11, 2107-01-01 as 1970-02-20. It does so with a message's timestamp, too.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check pika==1.4.4 aio-pika==10.2.1 aiormq==7.2.4 pamqp==4.0.1

cat >find.py <<'END'
import asyncio, os, uuid
from datetime import datetime, timezone
from importlib.metadata import version
import aio_pika, pika

url = os.environ["AMQP_URL"]
if url.endswith("//"):
    url = url[:-1] + "%2F"
name = f"finding-{uuid.uuid4().hex}"
dates = [datetime(year, month, day, tzinfo=timezone.utc) for year, month, day in ((2100, 1, 1), (2107, 1, 1), (9999, 12, 31))]

async def main():
    seen = {}
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        for date in dates:
            for _ in range(2):
                message = aio_pika.Message(b"", headers={"until": date}, timestamp=date)
                await channel.default_exchange.publish(message, name)
            got = await queue.get()
            await got.ack()
            other = pika.BlockingConnection(pika.URLParameters(url))
            properties = other.channel().basic_get(name, auto_ack=True)[1]
            other.close()
            seen[date] = got.headers["until"], got.timestamp, properties.headers["until"]
        await queue.delete()
    return seen

print(*(f"{package} {version(package)}" for package in ("aio-pika", "pamqp", "pika")))
for sent, (header, timestamp, by_pika) in asyncio.run(main()).items():
    print(f"{sent:%Y-%m-%d}: aio-pika reads {header:%Y-%m-%d}, timestamp {timestamp:%Y-%m-%d}; pika {by_pika:%Y-%m-%d}")
    assert by_pika == sent and header == timestamp
    assert header == sent if sent.year == 2100 else header.year in (1970, 1978)
END
venv/bin/python find.py
