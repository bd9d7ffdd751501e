"""Debounce: however often a document is saved, it is indexed once, when nobody has saved it for a while.

celery -A debounce worker
python debounce.py
"""

from __future__ import annotations

from celery import Celery

import celery_rabbit_delay

app = Celery("debounce", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)


@app.task(name="index")
def index(document: int, version: int) -> None:
    print(f"document {document} is indexed, version {version}", flush=True)


def saved(document: int, version: int) -> None:
    index.apply_async((document, version), countdown=4, headers={"x-delay-key": f"index-{document}"})


if __name__ == "__main__":
    for version in range(1, 11):
        saved(7, version)
    saved(8, 1)
