"""From the delayed-message-exchange plug-in: the code stays, but for the scheme of the URL.

python from_the_plug_in.py
"""

import kombu

import celery_rabbit_delay  # noqa: F401  registers the scheme rabbit-delay

mails = kombu.Exchange("mails", type="x-delayed-message", arguments={"x-delayed-type": "direct"})

with kombu.Connection("rabbit-delay://guest:guest@localhost//") as connection:
    queue = kombu.Queue("mail", mails, routing_key="mail")
    producer = connection.Producer(exchange=mails)
    producer.publish({"to": "ada"}, routing_key="mail", declare=[queue], headers={"x-delay": 90_000})
