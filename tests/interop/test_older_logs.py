"""DLedger switched on for a store with a classic commit log: brokers of either make seal it, and each reads what others made.

Apache calls the place where the ledger begins the divided offset.
"""

from pathlib import Path

import pytest

from .driver import Driver, Received, wait_for_topic
from .servers import Cluster, Maker, free_port
from .test_store_exchange import create_topic, serving

pytestmark = pytest.mark.interop

TOPIC = "T"
CLASSIC_MESSAGES, MESSAGES = 300, 50
FILE_SIZE = 16 * 1024 * 1024


def dledger_keys() -> dict[str, object]:
    """A group of one, which elects itself."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerPeers": f"n0-127.0.0.1:{free_port()}",
        "dLegerSelfId": "n0",
        "haSecret": "s",
    }


def positions(served: list[Received]) -> dict[str, tuple[int, int]]:
    """Where the broker has each message."""
    return {each.body: (each.queue_id, each.queue_offset) for each in served}


def send(java: Driver, body: str, count: int, total: int) -> dict[str, tuple[int, int]]:
    """Send messages; where all so far are."""
    java.send(topic=TOPIC, count=count, body=f"{body}-{{i}}", keys=f"{body}-{{i}}", size=3000)
    wait_for_topic(java, TOPIC, total)
    return positions(java.read_all(TOPIC))


@pytest.mark.parametrize(
    "makers",
    [
        pytest.param((Maker.OURS, Maker.OURS, Maker.APACHE_55, Maker.OURS), id="sealed-by-us-for-5.5"),
        pytest.param((Maker.OURS, Maker.OURS, Maker.APACHE_49, Maker.OURS), id="sealed-by-us-for-4.9"),
        pytest.param((Maker.APACHE_55, Maker.APACHE_55, Maker.OURS), id="sealed-by-5.5-for-us"),
        pytest.param((Maker.OURS, Maker.APACHE_49, Maker.OURS), id="sealed-by-4.9-for-us"),
    ],
)
def test_a_classic_store_is_read_on_below_the_ledger_whoever_sealed_it(makers: tuple[Maker, ...], tmp_path: Path) -> None:
    """The first broker writes in the classic mode, all others in DLedger mode; no message is lost or moved."""
    known: dict[str, tuple[int, int]] = {}
    for number, maker in enumerate(makers):
        keys = dledger_keys() if number else {}
        with serving(maker, tmp_path, **keys) as (cluster, java):
            if number == 0:
                create_topic(java, cluster, TOPIC, 2)
            else:
                assert positions(java.read_all(TOPIC)) == known
            count = MESSAGES if number else CLASSIC_MESSAGES
            known = send(java, f"life{number}", count, len(known) + count)
            cluster.broker_server.stop()
        check_files(cluster, divided=number > 0)
    assert len(known) == CLASSIC_MESSAGES + MESSAGES * (len(makers) - 1)


def check_files(cluster: Cluster, *, divided: bool) -> None:
    """The ledger's first file begins where the last classic one ends."""
    classic = sorted(path.name for path in (cluster.store / "commitlog").iterdir() if path.name.isdecimal())
    if divided:
        ledger = sorted(path.name for path in (cluster.store / "dledger-n0" / "data").iterdir())
        assert int(ledger[0]) == int(classic[-1]) + FILE_SIZE
