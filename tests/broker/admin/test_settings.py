"""Settings shown and changed while the broker runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledgermq.broker.admin.settings import CHANGEABLE
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.java_properties import read_properties

from .desk import Desk, open_desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(str(tmp_path), ha_secret="hush") as desk:  # noqa: S106
        yield desk


def shown(desk: Desk) -> dict[str, str]:
    return read_properties(desk.ask(RequestCode.GET_BROKER_CONFIG).body.decode())


def version(desk: Desk) -> int:
    counter: int = loads(desk.ask(RequestCode.GET_BROKER_CONFIG).ext["version"].encode())["counter"]
    return counter


async def test_settings_are_shown_under_the_names_of_rocketmq(desk: Desk) -> None:
    """Every setting is there, but no secret."""
    settings = shown(desk)

    assert settings["brokerName"] == "b1"
    assert settings["autoCreateTopicEnable"] == "true"
    assert "hush" not in settings.values()
    assert settings.keys() >= CHANGEABLE


async def test_changed_setting_holds_for_broker_and_store(desk: Desk) -> None:
    """A new value is shown, used by both, and gives the settings a new version."""
    before = version(desk)

    answer = desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxFilterMessageSize=1000\nlongPollingEnable=false\n")

    assert answer.code == ResponseCode.SUCCESS
    assert shown(desk)["maxFilterMessageSize"] == "1000"
    assert desk.broker.config.long_polling_enable is False
    assert desk.broker.store.config.max_filter_message_size == 1000
    assert desk.broker.config.max_filter_message_size == 1000
    assert version(desk) == before + 1


async def test_what_a_change_does_not_name_stays_in_the_store(desk: Desk) -> None:
    """The store keeps settings that only it has."""
    before = desk.broker.store.config

    desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"deleteWhen=05\n")

    assert desk.broker.store.config.delete_when == "05"
    assert desk.broker.store.config.memory_bytes == before.memory_bytes


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"noSuchKey=1", ResponseCode.INVALID_PARAMETER, "no setting noSuchKey"),
        (b"maxMessageSize=abc", ResponseCode.INVALID_PARAMETER, "maxMessageSize must be"),
        (b"listenPort=1", ResponseCode.NO_PERMISSION, "listenPort cannot be changed"),
        (b"brokerRole=SLAVE", ResponseCode.NO_PERMISSION, "brokerRole cannot be changed"),
        (b"haSecret=x", ResponseCode.NO_PERMISSION, "haSecret cannot be changed"),
        (b"syncFlushTimeout=1", ResponseCode.NO_PERMISSION, "syncFlushTimeout cannot be changed"),
        (b"\xff=1", ResponseCode.INVALID_PARAMETER, "not properties text"),
    ],
)
async def test_change_that_cannot_be_made_changes_nothing(desk: Desk, body: bytes, code: int, reason: str) -> None:
    """One entry that is unknown, fixed or bad keeps the good ones out too, and is named."""
    before = desk.broker.config

    answer = desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"longPollingEnable=false\n" + body)

    assert answer.code == code
    assert reason in (answer.remark or "")
    assert desk.broker.config == before


async def test_value_that_is_set_already_is_no_change(desk: Desk) -> None:
    """Sending back what is shown is accepted, fixed settings included."""
    text = desk.ask(RequestCode.GET_BROKER_CONFIG).body

    answer = desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)

    assert answer.code == ResponseCode.SUCCESS
    assert version(desk) == 0


async def test_name_servers_hear_of_changed_permissions(desk: Desk) -> None:
    """Taking the broker's write permission gives the topics a new version: name servers look at nothing else."""
    before = desk.broker.topics.version

    desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")

    assert desk.broker.topics.version != before


async def test_topics_by_sending_are_switched_off_and_on(desk: Desk) -> None:
    """The template topic exists exactly while sending creates topics."""
    desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false")
    off = desk.broker.topics.get("TBW102")
    desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=true")

    assert off is None
    assert desk.broker.topics.get("TBW102") is not None


async def test_groups_by_consuming_are_switched_off(desk: Desk) -> None:
    """`autoCreateSubscriptionGroup` reaches the group table."""
    desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateSubscriptionGroup=false")

    assert desk.broker.groups.find("new") is None
