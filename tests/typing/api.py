"""The public API as users write it: type-checked by `make lint`, never run."""

from datetime import datetime, timedelta

from celery import Celery

import celery_rabbit_delay
from celery_rabbit_delay import DelayError, EntryConflict, InvalidDelay, Options, periodic

app = Celery("shop")
celery_rabbit_delay.install(app)
celery_rabbit_delay.install(app, tick=0.01, slack=0.01)

options = Options(prefix="shop", max_delay=3600, slack=(0.01, 2.0), declare="passive")
seconds: float = options.tick

try:
    app.send_task("shop.order", countdown=5)
except InvalidDelay as exc:
    error: DelayError = exc

celery_rabbit_delay.pause(app, "mail", until="2030-01-31T12:00:00+01:00")
celery_rabbit_delay.resume(app, "mail", any_queue=True)
ends: list[datetime | None] = list(celery_rabbit_delay.paused(app).values())
periodic.add(app, "report", "shop.report", timedelta(hours=1), [1], {"a": 2}, {"queue": "mail"}, enabled=False)
try:
    periodic.change(app, "report", schedule="crontab 30 4 1 * *", version=1)
except EntryConflict as exc:
    error = exc
names: list[str] = [one.entry for one in periodic.entries(app) if one.is_written]
due: datetime | None = periodic.entries(app)[0].next
id_: str = periodic.run_now(app, "report")
