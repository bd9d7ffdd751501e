"""An online shop that asks for a review a while after each order.

celery -A shop worker -c 2
"""

from celery import Celery

import celery_rabbit_delay

app = Celery("shop", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)


@app.task
def ask_for_review(order: int) -> None:
    print(f"How was order {order}?")
