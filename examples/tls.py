"""An app whose broker asks for a client certificate.

celery -A tls worker
"""

import ssl

from celery import Celery

import celery_rabbit_delay

app = Celery("tls", broker="amqps://localhost:5671//")
app.conf.broker_use_ssl = {
    "ca_certs": "ca.pem",
    "certfile": "client.pem",
    "keyfile": "client.key",
    "cert_reqs": ssl.CERT_REQUIRED,
    "server_hostname": "localhost",
}
app.conf.broker_login_method = "EXTERNAL"  # the certificate names the user
celery_rabbit_delay.install(app)


@app.task
def ask_for_review(order: int) -> None:
    print(f"How was order {order}?", flush=True)
