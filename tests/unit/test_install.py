"""install() on apps of every shape; no broker is contacted."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import kombu
import pytest
from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import after_setup_logger

import celery_rabbit_delay
from celery_rabbit_delay import InvalidOption, Options, UnsupportedConfiguration, install
from celery_rabbit_delay import installation as install_
from celery_rabbit_delay.cli.target import AppTarget
from celery_rabbit_delay.transport import SSLTransport, Transport

AMQP_URL = "amqp://shop:p%40ss@rabbit.example:5673/orders"


def app_with(**conf: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    return app


def test_an_app_that_nobody_holds_is_collected_with_its_connections() -> None:
    app = app_with(broker_url=AMQP_URL)
    install(app)
    connection = app.producer_pool.connections.connection
    assert connection.transport.driver_type
    gone = weakref.ref(connection)
    app.close()
    kombu.pools.reset()
    del app, connection
    gc.collect()
    assert gone() is None


def transports(connection: kombu.Connection) -> list[type]:
    """Return the transport of the first broker, and of each one that failover switches to."""
    found = [type(connection.transport)]
    for _ in connection.alt[1:]:
        connection.maybe_switch_next()
        found.append(type(connection.transport))
    return found


@pytest.mark.parametrize("scheme", ["amqp", "pyamqp", "rabbit-delay"])
def test_the_app_connects_through_our_transport_to_the_same_place(scheme: str) -> None:
    app = Celery("shop", broker=AMQP_URL.replace("amqp", scheme, 1), set_as_current=False)
    install(app)
    connection = app.connection_for_write()
    assert type(connection.transport) is Transport
    assert (connection.hostname, connection.port, connection.virtual_host) == ("rabbit.example", 5673, "orders")
    assert (connection.userid, connection.password) == ("shop", "p@ss")


def test_a_tls_url_keeps_tls() -> None:
    app = app_with(broker_url="amqps://rabbit.example//", broker_use_ssl={"ca_certs": "/ca.pem"})
    install(app)
    connection = app.connection_for_write()
    assert type(connection.transport) is SSLTransport
    assert connection.ssl == {"ca_certs": "/ca.pem"}
    app = app_with(broker_url="amqps://rabbit.example//")
    install(app)
    assert app.connection_for_read().transport.client.ssl is True


@pytest.mark.parametrize(
    "url",
    [
        *("amqp://a//;amqp://b//", ["amqp://a//", "pyamqp://b//"], ("amqp://a//", "amqp://b//"), "amqp://a//;b"),
        *(["a", "b"], "amqps://a//;amqps://b//", ["amqps://a//", "amqps://b//"], ("amqps://a//", "amqps://b//")),
    ],
)
def test_every_broker_of_a_list_is_reached_through_our_transport(url: Any) -> None:
    app = app_with(broker_url=url)
    install(app)
    expected = 2 * [SSLTransport if "amqps" in str(url) else Transport]
    assert transports(app.connection_for_write()) == transports(app.connection_for_read()) == expected


def test_read_and_write_urls_pools_and_clones_are_covered() -> None:
    app = app_with(broker_read_url="amqp://read//", broker_write_url="amqp://write//")
    install(app)
    assert app.connection_for_read().hostname == "read"
    assert app.connection_for_write().hostname == "write"
    for connection in (
        app.connection(),
        app.connection_for_read(),
        app.connection_for_write().clone(),
        app.pool.connection,
        app.amqp.producer_pool.connections.connection,
        app.connection("amqp://elsewhere//"),
    ):
        assert type(connection.transport) is Transport


@pytest.mark.parametrize("transport", [None, "amqp", "pyamqp"])
def test_no_url_at_all_means_rabbitmq_on_this_machine_and_broker_transport_is_understood(transport: str | None) -> None:
    app = app_with(**({"broker_url": "rabbit.example", "broker_transport": transport} if transport else {}))
    install(app)
    assert type(app.connection().transport) is Transport


def test_the_users_url_stays_as_it_is_and_connections_show_themselves_as_amqp() -> None:
    app = app_with(broker_url=AMQP_URL)
    install(app)
    assert app.conf.broker_url == AMQP_URL
    assert app.connection().as_uri(include_password=True) == AMQP_URL
    assert app.conf.broker_url == AMQP_URL


class Config:
    broker_url = "amqp://configured//"
    timezone = "Europe/Berlin"


@pytest.mark.parametrize("when", ["before", "after", "lazily"])
def test_install_works_before_and_after_the_configuration(when: str) -> None:
    app = Celery("shop", set_as_current=False)
    if when == "before":
        install(app, tick=0.5)
        app.config_from_object(Config)
    elif when == "after":
        app.config_from_object(Config, force=True)
        install(app, tick=0.5)
    else:
        app.config_from_object(Config)
        install(app, tick=0.5)
        assert not app.configured, "the configuration must not be loaded earlier than without us"
    connection = app.connection_for_write()
    assert connection.hostname == "configured"
    options = connection.transport.delay_options
    assert options.tick == 0.5


def test_an_app_that_was_used_before_keeps_its_queues_and_loses_its_plain_connections() -> None:
    app = app_with(broker_url=AMQP_URL)
    queues, pool, producers = app.amqp.queues, app.pool, app.amqp.producer_pool
    queues.add(kombu.Queue("added"))
    install(app)
    assert app.amqp.queues is queues
    assert "added" in app.amqp.queues
    assert app.pool is not pool
    assert app.amqp.producer_pool is not producers
    assert type(app.amqp.producer_pool.connections.connection.transport) is Transport


def test_a_custom_amqp_class_is_kept() -> None:
    class Custom(AMQP):  # type: ignore[misc]
        extra = 1

    app = Celery("shop", broker=AMQP_URL, amqp=Custom, set_as_current=False)
    install(app)
    assert isinstance(app.amqp, Custom)
    assert type(app.connection().transport) is Transport


def test_what_the_app_says_of_its_connection_is_plain() -> None:
    """`inspect stats`, which Flower and others ask for, sends it, as JSON or as a pickle."""
    app = app_with(broker_url=AMQP_URL)
    install(app, slack=(0.01, 2), tick=0.25)
    connection = app.connection_for_read()
    assert json.loads(json.dumps(connection.info()["transport_options"])) == connection.info()["transport_options"]
    assert b"celery_rabbit_delay" not in pickle.dumps(connection.info())  # a class of ours, which they may not have
    options = connection.transport.delay_options
    assert (options.tick, tuple(options.slack)) == (0.25, (0.01, 2))


def test_what_a_connection_with_options_of_our_class_says_of_itself_is_plain() -> None:
    options = Options(outboxes=(60,))
    given = {"rabbit_delay": options, "confirm_publish": True}
    connection = kombu.Connection("rabbit-delay://", transport_options=given)
    assert connection.transport.delay_options is options
    assert b"celery_rabbit_delay" not in pickle.dumps(connection.info())
    written = connection.clone().transport.delay_options
    assert written.outbox_ticks == options.outbox_ticks


def test_a_second_install_with_the_same_options_does_nothing() -> None:
    app = app_with(broker_url=AMQP_URL)
    install(app, tick=0.25)
    amqp = app.amqp
    install(app, tick=0.25)
    assert app.amqp is amqp
    with pytest.raises(InvalidOption) as caught:
        install(app, tick=0.5, max_delay=3600)
    different = "tick=0.5 instead of 0.25, max_delay=3600 instead of 31536000.0"
    assert str(caught.value) == f"{app} is installed already, and this call has {different}: install it once"


def test_options_in_two_places_are_an_error() -> None:
    app = app_with(broker_url=AMQP_URL, broker_transport_options={"rabbit_delay": {"tick": 0.5}})
    install(app)
    with pytest.raises(InvalidOption, match=r"has no effect together with install\(\): pass the options"):
        app.connection()


def options_of(app: Celery) -> Options:
    options: Options = app.connection().transport.delay_options
    return options


@pytest.mark.parametrize("when", ["before", "after"])
def test_options_come_from_the_configuration_unless_they_are_given(when: str) -> None:
    app = Celery("shop", broker=AMQP_URL, set_as_current=False)
    if when == "before":
        app.conf.rabbit_delay = {"tick": 0.5, "max_delay": 3600}
    install(app, tick=0.25)
    if when == "after":
        app.conf.rabbit_delay = {"tick": 0.5, "max_delay": 3600}
    assert (options_of(app).tick, options_of(app).max_delay) == (0.25, 3600)
    install(app, tick=0.25)


@pytest.mark.parametrize("namespace", ["", "CELERY"])
def test_options_come_from_a_module_of_settings(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("CELERY_BROKER_URL", "CELERY_RABBIT_DELAY") if namespace else ("broker_url", "rabbit_delay")
    settings = ModuleType("settings_of_a_shop")
    vars(settings).update(zip(names, (AMQP_URL, {"prefix": "shop-delays"}), strict=True))
    monkeypatch.setitem(sys.modules, settings.__name__, settings)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(settings.__name__, namespace=namespace or None)
    install(app)
    assert options_of(app).prefix == "shop-delays"
    assert options_of(pickle.loads(pickle.dumps(app))).prefix == "shop-delays"


@pytest.mark.parametrize(("wrong", "says"), [({"tock": 1}, "unknown option tock: did you mean tick"), (5, "use a map")])
def test_a_wrong_option_in_the_configuration_is_an_error_where_it_is_read(wrong: Any, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        install(app_with(broker_url=AMQP_URL, rabbit_delay=wrong))
    app = app_with(broker_url=AMQP_URL)
    install(app)
    app.conf.rabbit_delay = wrong
    with pytest.raises(InvalidOption, match=says):
        app.connection()


@pytest.mark.parametrize("value", ["off", "OFF"])
def test_the_switch_leaves_an_app_as_it_is_and_says_so(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CELERY_RABBIT_DELAY", value)
    app = app_with(broker_url=AMQP_URL)
    before = dict(vars(app))
    with caplog.at_level(logging.INFO):
        install(app, tick=0.5)
    assert vars(app) == {**before, "delay_options_given": {"tick": 0.5}}
    assert app.connection().transport.driver_type == "amqp"
    assert caplog.messages == [
        "CELERY_RABBIT_DELAY=off: Celery runs all delayed tasks; celery-rabbit-delay does nothing"
    ]
    with celery_rabbit_delay.batch(app):
        pass  # nothing is collected, so nothing warns of it
    caplog.clear()
    after_setup_logger.send(sender=None)  # as a worker does, once it logs to its file
    assert caplog.messages == [
        "CELERY_RABBIT_DELAY=off: Celery runs all delayed tasks; celery-rabbit-delay does nothing"
    ]
    after_setup_logger.disconnect(install_._say_it_is_off)
    answers: list[str] = []
    page = celery_rabbit_delay.page(app, "a secret")
    assert b"no page" in b"".join(page({}, lambda status, headers: answers.append(status)))  # type: ignore[arg-type]
    assert answers == ["503 Service Unavailable"]
    with pytest.raises(UnsupportedConfiguration, match="unset CELERY_RABBIT_DELAY, which is off"):
        celery_rabbit_delay.find(app, "an id")
    with pytest.raises(click.ClickException, match="unset CELERY_RABBIT_DELAY, which is off"):
        AppTarget(app).connection()
    with pytest.raises(InvalidOption, match="unknown option tock"):
        install(app, tock=1)


def test_the_switch_may_be_on_and_a_mistyped_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_RABBIT_DELAY", "of")
    app = app_with(broker_url=AMQP_URL)
    with pytest.raises(InvalidOption, match="CELERY_RABBIT_DELAY is 'of': use off, or on"):
        install(app)
    monkeypatch.setenv("CELERY_RABBIT_DELAY", "on")
    install(app)
    assert app.connection().transport.driver_type == "rabbitmq"


def test_other_apps_are_left_alone() -> None:
    installed, other = app_with(broker_url=AMQP_URL), app_with(broker_url=AMQP_URL)
    install(installed)
    assert other.connection().transport.driver_type == "amqp"


@pytest.mark.parametrize(
    "url", ["redis://localhost", "sqs://", "librabbitmq://localhost//", "amqp://a;redis://b", "amqp://a;memory://"]
)
def test_a_broker_that_is_not_rabbitmq_is_an_error_that_says_what_to_do(url: str) -> None:
    expected = r"the broker's transport is .*, but only RabbitMQ over AMQP can delay tasks: use a broker_url that"
    with pytest.raises(UnsupportedConfiguration, match=expected):
        install(Celery("shop", broker=url, set_as_current=False))
    app = Celery("shop", set_as_current=False)
    install(app)
    app.conf.broker_url = url
    with pytest.raises(UnsupportedConfiguration, match=expected):
        app.connection()


def test_a_broker_from_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://localhost")
    with pytest.raises(UnsupportedConfiguration):
        install(Celery("shop", set_as_current=False))


def test_each_class_that_it_changes_is_in_the_list_of_hooks() -> None:
    plain, ours = Celery("shop", set_as_current=False), Celery("shop", set_as_current=False)
    install(ours, schedule=True)

    def classes(app: Celery) -> dict[str, Any]:
        parts = {"amqp": app.amqp, "control": app.control, "control.mailbox": app.control.mailbox}
        said = {f"class of `app.{name}`": type(part) for name, part in parts.items()}
        fields = {f"`app.{at}.{name}`": value for at, part in parts.items() for name, value in vars(part).items()}
        return said | {name: value for name, value in fields.items() if isinstance(value, type)}

    changed = [name for name, found in classes(ours).items() if classes(plain).get(name) is not found]
    assert changed == ["class of `app.amqp`", "class of `app.control`"]
    hooks = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()
    assert [name for name in changed if name not in hooks] == []


def test_a_failed_install_changes_nothing() -> None:
    app = Celery("shop", broker="redis://", set_as_current=False)
    with pytest.raises(UnsupportedConfiguration):
        install(app)
    with pytest.raises(InvalidOption, match="unknown option tock: did you mean tick\\? use any of confirm_timeout,"):
        install(app, tock=1)
    app.conf.broker_url = "memory://"
    assert type(app.amqp) is AMQP
    assert app.connection().transport.driver_type == "memory"


def test_task_protocol_1_is_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedConfiguration, match="hides a task's eta in its body"):
        install(app_with(broker_url=AMQP_URL, task_protocol=1))
    app = app_with(broker_url=AMQP_URL)
    install(app)
    app.conf.task_protocol = 1
    with pytest.raises(UnsupportedConfiguration, match="use task_protocol = 2"):
        app.connection()


def test_plain_kombu_finds_the_schemes() -> None:
    assert type(kombu.Connection("rabbit-delay://localhost//").transport) is Transport
    assert type(kombu.Connection("rabbit-delays://localhost//").transport) is SSLTransport
    lists = kombu.Connection("rabbit-delay://a//;rabbit-delay://b//")
    assert transports(lists) == [Transport, Transport]


def test_options_of_a_plain_kombu_connection_are_checked() -> None:
    options = {"rabbit_delay": {"tick": 0.01, "tock": 1}}
    with pytest.raises(InvalidOption, match="unknown option tock"):
        _ = kombu.Connection("rabbit-delay://localhost//", transport_options=options).transport


@pytest.mark.parametrize(
    ("version", "queue_type", "per_consumer"),
    [("3.10.8", "classic", False), ("3.10.8", "quorum", True), ("4.0.5", "classic", True), ("4.3.6", "quorum", True)],
)
def test_prefetch_is_per_consumer_where_the_broker_or_the_queues_know_no_other(
    version: str, queue_type: str, per_consumer: bool
) -> None:
    queue = kombu.Queue("celery", queue_arguments={"x-queue-type": queue_type})
    app = app_with(broker_url=AMQP_URL, task_queues=[queue])
    install(app)

    class Amqp:
        server_properties = {"product": "RabbitMQ", "version": version}  # noqa: RUF012
        server_version = tuple(map(int, version.split(".")))

    assert app.connection_for_read().transport.qos_semantics_matches_spec(Amqp) is per_consumer


def test_install_replaces_no_function_of_celery_or_kombu() -> None:
    """Their functions and classes are the same objects after everything of ours is in use as before."""
    code = """
import importlib, kombu.connection, kombu.messaging, kombu.transport.pyamqp, amqp, celery.app.base, celery.app.amqp
import celery.worker.consumer.gossip, celery.worker.consumer.mingle, celery.worker.loops, celery.worker.strategy
modules = [m for n, m in list(__import__("sys").modules.items()) if n.split(".")[0] in ("amqp", "kombu", "celery")]
def code_of(module):
    found = {}
    for name, value in vars(module).items():
        members = vars(value).items() if isinstance(value, type) else [("", value)]
        found |= {(name, key): member for key, member in members if callable(member) and key != "__class__"}
    return found
before = {module.__name__: code_of(module) for module in modules}
import celery_rabbit_delay
from celery_rabbit_delay.delay.app.signals import enable_mingle_and_gossip
app = celery.app.base.Celery("shop", broker="amqp://")
celery_rabbit_delay.install(app)
enable_mingle_and_gossip()
app.connection().transport
after = {module.__name__: code_of(module) for module in modules}
changed = [(m, k) for m in before for k in before[m] if after[m].get(k) is not before[m][k]]
assert not changed, changed
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
