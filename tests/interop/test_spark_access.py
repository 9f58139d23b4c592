"""The data source on an Apache broker with access control: requests are signed, and a refusal is an error that says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ledgermq.pipeline.errors import NotWritten, Unavailable
from ledgermq.pipeline.options import write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.sender import Sender
from ledgermq.pipeline.sink import begin

from .conftest import obtain
from .servers import NO_TLS, Cluster, Maker, jars_of, running
from .test_spark_source import read, read_all

pytestmark = pytest.mark.interop
pa: Any = pytest.importorskip("pyarrow")
TOPIC = "Secured"
KEYS = {"accessKey": "spark", "secretKey": "12345678"}
PROVIDERS = "org.apache.rocketmq.auth.authentication.provider"
USER = json.dumps({"username": KEYS["accessKey"], "password": KEYS["secretKey"]})
ACCESS_CONTROL = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{PROVIDERS}.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{PROVIDERS}.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": USER,
    "innerClientAuthenticationCredentials": json.dumps(KEYS),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that knows one user and has one topic."""
    obtain(lambda: jars_of(Maker.APACHE_55))
    folder = tmp_path_factory.mktemp("secured")
    topic = {"topicName": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": {TOPIC: {**topic, "topicSysFlag": 0}}}
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text(json.dumps(table))
    with running(Maker.APACHE_55, folder, NO_TLS, **ACCESS_CONTROL) as running_cluster:
        yield running_cluster


def write(cluster: Cluster, **keys: str) -> None:
    options = write_options({"nameServer": cluster.namesrv, "topic": TOPIC, "failoverTimeoutMs": "3000", **keys})
    sender = Sender(options, begin(options), "q.0.0")
    batch = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in range(50)]})
    sender.add(Rows({"body": "body"}, TOPIC, 1000, allow_null_body=False).messages(batch, "here"))
    sender.flush()


def test_a_topic_is_read_and_written_with_the_right_keys_only(cluster: Cluster) -> None:
    """What the broker said is part of the error, and it comes at once."""
    place = {"nameServer": cluster.namesrv, "subscribe": TOPIC}
    write(cluster, **KEYS)

    assert sorted(row["body"] for row in read_all(50, **place, **KEYS)) == sorted(b"%d" % number for number in range(50))
    with pytest.raises(Unavailable, match=r"signature|username|[Aa]ccess"):
        read(**place)
    with pytest.raises((NotWritten, Unavailable), match=r"signature|username|[Aa]ccess"):
        write(cluster, **{**KEYS, "secretKey": "another"})
