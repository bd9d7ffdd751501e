"""A retry queue for plain consumers: waits that grow, and what failed for good kept aside.

python retry_queue.py consume
python retry_queue.py publish
"""

from __future__ import annotations

import sys
from typing import Any

import kombu
from kombu.mixins import ConsumerMixin

import celery_rabbit_delay  # noqa: F401  registers the scheme rabbit-delay

BROKER = "rabbit-delay://guest:guest@localhost//"
WAITS = (0.5, 1, 2)  # seconds before the second, third and fourth try

parcels = kombu.Queue(
    "parcels",
    queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parcels.failed"},
)
failed = kombu.Queue("parcels.failed")


def deliver(parcel: str, tries: int) -> None:
    print(f"parcel {parcel}, try {tries + 1}", flush=True)
    if parcel == "lost" or tries < 2:
        raise OSError("nobody opens")


class Courier(ConsumerMixin):
    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        self.producer = connection.clone().Producer()

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        failed(channel).declare()
        return [consumer([parcels], callbacks=[self.on_parcel], prefetch_count=10)]

    def on_parcel(self, body: dict[str, Any], message: kombu.Message) -> None:
        tries = message.headers.get("tries", 0)
        try:
            deliver(body["parcel"], tries)
        except OSError:
            if tries == len(WAITS):
                message.reject()  # to parcels.failed
                return
            headers = {"tries": tries + 1, "x-delay": 1000 * WAITS[tries]}
            self.producer.publish(body, routing_key=parcels.name, headers=headers)  # returns when the broker stored it
        message.ack()


if __name__ == "__main__":
    with kombu.Connection(BROKER) as connection:
        if sys.argv[1:] == ["publish"]:
            for parcel in ("late", "lost"):
                connection.Producer().publish({"parcel": parcel}, routing_key=parcels.name, declare=[parcels, failed])
        else:
            Courier(connection).run()
