"""The delay: `countdown` and `eta` kept by RabbitMQ. Knows nothing of the schedule."""
