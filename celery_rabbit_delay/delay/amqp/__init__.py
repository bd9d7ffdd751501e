"""The Kombu transport and what it needs of py-amqp: declaring, publishing with confirms, batches. Knows no Celery."""
