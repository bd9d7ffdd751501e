"""Flask: an app factory, and a web request that leads to a delayed task.

celery -A flask_shop.celery_app worker
flask --app flask_shop run
"""

from __future__ import annotations

from typing import Any

from celery import Celery, Task, shared_task
from flask import Flask, current_app

import celery_rabbit_delay


def make_celery(app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_rabbit_delay.install(celery_app)
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


def create_app() -> Flask:
    app = Flask("shop")
    app.config.update(
        SHOP="the shop",
        CELERY={"broker_url": "amqp://guest:guest@localhost//", "task_ignore_result": True},
    )
    make_celery(app)

    @app.post("/orders/<int:order>")
    def place(order: int) -> tuple[dict[str, str], int]:
        sent = ask_for_review.apply_async((order,), countdown=3)
        return {"review": sent.id}, 202

    return app


@shared_task
def ask_for_review(order: int) -> None:
    print(f"{current_app.config['SHOP']} asks: how was order {order}?", flush=True)


celery_app = create_app().extensions["celery"]  # what `celery -A` looks for
