"""What objects show of themselves: one line, and no secret."""

from __future__ import annotations

import gc
from pathlib import Path

from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.message.message import Message
from ledgermq.testing.embedded import open_embedded
from ledgermq.testing.logs import capture_logs

from ..conftest import MakeCertificate

HA_SECRET, KEY_PASSWORD = "sesame-of-the-nodes", "sesame-of-the-key"
LINE_CHARACTERS_MAX = 200


async def test_no_object_and_no_event_shows_a_secret(tmp_path: Path, make_certificate: MakeCertificate) -> None:
    """Not of a running cluster with a password and a secret, and not of its clients: every object of ours is asked."""
    older = gc.get_objects()  # of the tests before; asking them would take long
    certificate = make_certificate("broker", KEY_PASSWORD)
    settings = {
        "haSecret": HA_SECRET,
        "tls.server.certPath": certificate.cert,
        "tls.server.keyPath": certificate.key,
        "tls.server.keyPassword": KEY_PASSWORD,
    }
    with capture_logs() as logs:
        async with (
            open_embedded(store=str(tmp_path), mode="ha", nodes=2, settings=settings) as embedded,
            open_admin(embedded.namesrv) as admin,
            open_producer(embedded.namesrv) as producer,
            open_consumer(embedded.namesrv, "g", "t") as consumer,
            open_pull_consumer(embedded.namesrv, "g") as pull_consumer,
        ):
            await producer.send(Message("t", b""))
            for each in (embedded, *embedded.brokers, admin, producer, consumer, pull_consumer):
                assert len(repr(each)) < LINE_CHARACTERS_MAX, repr(each)[:1000]
                assert "\n" not in repr(each)
            await admin.broker_config("broker-a")
            known = set(map(id, older))
            ours = (each for each in gc.get_objects() if str(type(each).__module__).startswith("ledgermq."))
            shown = [repr(each) for each in ours if id(each) not in known]

    assert len(shown) > 100
    assert [text[:200] for text in shown if HA_SECRET in text or KEY_PASSWORD in text] == []
    assert HA_SECRET not in repr(logs)
    assert KEY_PASSWORD not in repr(logs)
