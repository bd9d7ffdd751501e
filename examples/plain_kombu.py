"""Plain Kombu: delayed messages without Celery.

python plain_kombu.py consume
python plain_kombu.py publish
"""

from __future__ import annotations

import sys
import time
from typing import Any

import kombu
from kombu.mixins import ConsumerMixin

import celery_rabbit_delay

BROKER = "rabbit-delay://guest:guest@localhost//"  # the scheme that importing the package registers
mails = kombu.Queue("mails", kombu.Exchange("mails", type="topic"), routing_key="mail.#")


def publish() -> None:
    with kombu.Connection(BROKER) as connection:
        producer = connection.Producer()
        mails(connection.default_channel).declare()
        producer.publish({"to": "ada", "sent": time.time()}, "mail.de", exchange="mails", headers={"x-delay": 1500})
        with celery_rabbit_delay.batch(producer):  # confirmed together
            for n in range(100):
                producer.publish({"to": f"reader {n}"}, "mail.en", exchange="mails", headers={"x-delay": 90_000})


class Mailer(ConsumerMixin):
    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer([mails], callbacks=[self.on_mail], prefetch_count=10)]

    def on_mail(self, body: dict[str, Any], message: kombu.Message) -> None:
        waited = time.time() - body["sent"]
        print(f"mail to {body['to']} by {message.delivery_info['routing_key']} after {waited:.1f} s", flush=True)
        message.ack()


if __name__ == "__main__":
    if sys.argv[1:] == ["publish"]:
        publish()
    else:
        with kombu.Connection(BROKER) as connection:
            Mailer(connection).run()
