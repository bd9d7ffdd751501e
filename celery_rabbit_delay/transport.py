"""The transport that Kombu loads for `rabbit-delay://`: that of the delay, with the schedule if the options ask for it.

Beside `install`, the only place that knows both.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import pyamqp

from .delay.amqp.interceptor import Interceptor
from .delay.amqp.transport import Transport as DelayTransport


class Transport(DelayTransport):
    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        if self.delay_options.schedule:
            from .schedule.core.streams import require_streams

            require_streams((client.hostname or "", *client.alt))

    def intercept(self, client: Any) -> Interceptor:
        if not self.delay_options.schedule:
            return super().intercept(client)
        from .schedule.interceptor import ScheduleInterceptor

        return ScheduleInterceptor(client)


class SSLTransport(pyamqp.SSLTransport, Transport):  # type: ignore[misc]
    pass
