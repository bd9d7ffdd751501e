"""What became of recorded messages, as the streams tell it."""

from __future__ import annotations

import pytest

from celery_rabbit_delay.schedule.amqp.waiting_tasks import headers_in
from celery_rabbit_delay.schedule.core.fates import Fates
from celery_rabbit_delay.schedule.core.journal import pack_records
from tests.kit.fates import CASES, NOW, Case


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("records_first", [True, False])
def test_what_became_of_a_message_is_what_the_streams_add_up_to(case: Case, records_first: bool) -> None:
    fates = Fates(lambda: NOW / 1000)
    packed = [pack_records(case.records)]
    told = [fates.apply(message) for message in (packed + case.says if records_first else case.says + packed)]
    assert [one for some in told for one in some] == case.records
    assert {record.number: fates.of(record, NOW, headers_in) for record in case.records} == case.became
