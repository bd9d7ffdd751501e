#!/bin/sh
# On RabbitMQ 4.3 a requeue counts towards a quorum queue's delivery limit if it is a `basic.reject`, not if it is a `basic.nack`.
#
# Guess: both count, for AMQP 0-9-1 calls nack with one message the same as reject; a lost connection does not count, for nobody
#   refused the message.
# Seen (limit 20, the default from 4.0 on; how often a message could be taken):
#   4.3.6: closed connection 21, reject 21, nack and recover more than 25
#   4.0.5: all of them 21
#   3.10.8: all of them more than 25, for it has no limit by default
#   So a worker that holds a message which is not due yet, such as Celery's with an eta, loses it with its 21st restart.
set -eu
export AMQP_URL="${AMQP_URL:-amqp://guest:guest@localhost:5672//}"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check aio-pika==10.2.1

cat >find.py <<'END'
import asyncio, os, uuid
import aio_pika

async def times(end):
    name, n = f"finding-{uuid.uuid4()}", 0
    connection = await aio_pika.connect(os.environ["AMQP_URL"])
    channel = await connection.channel()
    await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
    await channel.default_exchange.publish(aio_pika.Message(b"", delivery_mode=2), name)
    version = connection.transport.connection.server_properties["version"]
    while n < 26:
        queue = await channel.get_queue(name)
        for _ in range(40):
            message = await queue.get(fail=False, no_ack=False)
            if message:
                break
            await asyncio.sleep(0.05)
        else:
            break
        n += 1
        if end == "closed connection":
            await connection.close()
            connection = await aio_pika.connect(os.environ["AMQP_URL"])
            channel = await connection.channel()
        elif end == "recover":
            await (await channel.get_underlay_channel()).basic_recover(requeue=True)
        else:
            await getattr(message, end)(requeue=True)
    await channel.queue_delete(name)
    await connection.close()
    return version, n

seen = {end: asyncio.run(times(end)) for end in ("closed connection", "reject", "nack", "recover")}
version = seen["nack"][0]
taken = {end: n for end, (_, n) in seen.items()}
print("RabbitMQ", version, "taken:", taken)
all_count = dict.fromkeys(taken, 21)
if version.startswith("3."):
    assert set(taken.values()) == {26}
elif version < "4.3":
    assert taken == all_count
else:
    assert taken == {**all_count, "nack": 26, "recover": 26}
END
venv/bin/python find.py
