"""Debounce: however often a document is saved, it is indexed once, when nobody has saved it for a while.

celery -A debounce worker
python debounce.py
"""

from __future__ import annotations

from celery import Celery

import celery_rabbit_delay

QUIET = 10  # seconds without a save, after which a document is indexed

app = Celery("debounce", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app, schedule=True, journal=QUIET)  # records tasks with this delay


@app.task(name="index")
def index(document: int) -> None:
    print(f"document {document} is indexed", flush=True)  # as it is now, with every save


def saved(document: int) -> None:
    id_ = f"index-{document}"
    try:
        celery_rabbit_delay.reschedule(app, id_, countdown=QUIET)
    except (celery_rabbit_delay.NotWaiting, celery_rabbit_delay.TooLate):  # the task before may not see this save
        index.apply_async((document,), task_id=id_, countdown=QUIET)
    except celery_rabbit_delay.DifferentMessages:
        pass  # two processes have sent the task at the same moment: both tasks wait, and will see this save


if __name__ == "__main__":
    for document in [7] * 10 + [8]:
        saved(document)
