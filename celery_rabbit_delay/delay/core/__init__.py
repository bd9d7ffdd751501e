"""The cascade as data: due times, ticks, levels, routing keys, topology, headers, options, errors.

Pure: knows AMQP's rules, but no broker, no clock, no Kombu and no Celery.
"""
