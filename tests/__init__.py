"""Tests in tiers by what must be running: unit (nothing), integration (a broker), acceptance (a broker and workers)."""

from celery_rabbit_delay.amqp import declare

# Only in test_crash is a node killed right after it has created a queue.
SAVED_AFTER, declare.SAVED_AFTER = declare.SAVED_AFTER, 0.0
