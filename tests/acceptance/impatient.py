"""Lets a worker that imports it wait for streams for seconds only, where others wait for half a minute."""

from celery_rabbit_delay.schedule import interceptor as receiving
from celery_rabbit_delay.schedule.amqp import stream_consumer
from celery_rabbit_delay.schedule.app import revoking

revoking.PATIENCE = 1
stream_consumer.PATIENCE = 3
receiving.PAUSE = 1
