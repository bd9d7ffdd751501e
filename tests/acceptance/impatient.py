"""Lets a worker that imports it wait for streams for seconds only, where others wait for longer."""

from celery_rabbit_delay.schedule import interceptor as receiving
from celery_rabbit_delay.schedule.amqp import stream_consumer
from celery_rabbit_delay.schedule.app import revoking

stream_consumer.PATIENCE = 3
vars(revoking)["PATIENCE"] = vars(receiving)["PAUSE"] = 1
