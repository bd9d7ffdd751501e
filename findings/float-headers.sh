#!/bin/sh
# A number with a fraction in a header arrives as another number: aio-pika rounds it as it sends, pika cuts the fraction off as it reads.
#
# Guess: AMQP has a type for a double, so 1.5 and `time.time()` are the same at whoever reads them; 12 and "1.5" are.
# Seen with pika 1.4.4, aio-pika 10.2.1 (pamqp 4.0.1) and py-amqp 5.4.2: aio-pika writes a float in 32 bits: the time comes up to 64 s early
#   or late, and 0.1 is not 0.1. Pika reads 1.5, and the soft time limit of a Celery task, as 1. Py-amqp does both right.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check amqp==5.4.2 pika==1.4.4 aio-pika==10.2.1 aiormq==7.2.4 pamqp==4.0.1

cat >find.py <<'END'
import asyncio, os, uuid
from importlib.metadata import version
import aio_pika, amqp, pika
from urllib.parse import unquote, urlsplit

url = os.environ["AMQP_URL"]
if url.endswith("//"):
    url = url[:-1] + "%2F"
parts = urlsplit(url)
connection = amqp.Connection(
    f"{parts.hostname}:{parts.port or 5672}", parts.username, parts.password, virtual_host=unquote(parts.path[1:])
)
connection.connect()
channel = connection.channel()
queue = f"finding-{uuid.uuid4().hex}"
channel.queue_declare(queue, durable=True, auto_delete=False)
headers = {"half": 1.5, "tenth": 0.1, "at": 1764423456.789, "whole": 12, "text": "1.5"}

async def with_aio_pika(message=None):
    async with await aio_pika.connect(url) as other:
        its = await other.channel()
        if message:
            return await its.default_exchange.publish(message, queue)
        got = await (await its.get_queue(queue)).get()
        await got.ack()
        return dict(got.headers)

def send(sender):
    if sender == "py-amqp":
        channel.basic_publish_confirm(amqp.Message(b"", application_headers=headers), routing_key=queue)
    else:
        asyncio.run(with_aio_pika(aio_pika.Message(b"", headers=headers)))

def read(reader):
    if reader == "py-amqp":
        return channel.basic_get(queue, no_ack=True).headers
    if reader == "aio-pika":
        return asyncio.run(with_aio_pika())
    other = pika.BlockingConnection(pika.URLParameters(url))
    method, properties, body = other.channel().basic_get(queue, auto_ack=True)
    other.close()
    return properties.headers

seen = {}
for sender in ("py-amqp", "aio-pika"):
    for reader in ("py-amqp", "aio-pika", "pika"):
        send(sender)
        seen[sender, reader] = got = read(reader)
        print(f"from {sender} to {reader}: {got}")
channel.queue_delete(queue)
print("RabbitMQ", connection.server_properties["version"], *(f"{name} {version(name)}" for name in ("amqp", "pika", "aio-pika", "pamqp")))
connection.close()
assert seen["py-amqp", "py-amqp"] == seen["py-amqp", "aio-pika"] == headers
for reader in ("py-amqp", "aio-pika"):
    got = seen["aio-pika", reader]
    assert got["half"] == 1.5 and got["at"] == 1764423424 and 0 < abs(got["tenth"] - 0.1) < 1e-7, got
cut = {"half": 1, "tenth": 0, "whole": 12, "text": "1.5"}
assert seen["py-amqp", "pika"] == {**cut, "at": 1764423456} and seen["aio-pika", "pika"] == {**cut, "at": 1764423424}
END
venv/bin/python find.py
