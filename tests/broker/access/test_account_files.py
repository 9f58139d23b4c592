"""The files of accounts: read at the start, and again when they change."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.broker.errors import BadAccountFile
from ledgermq.remoting.signature import Credentials
from ledgermq.testing.logs import capture_logs

from ..desk import open_desk, until
from .test_plain_acl import FILE, open_plain, remark


async def test_changed_files_count_within_a_second_or_two(tmp_path: Path) -> None:
    """One in `acl/`, too; what is blank or cannot be read changes nothing, and is logged."""
    async with open_plain(tmp_path) as desk:
        carol = desk.peer(Credentials("carol-one", "abcdefgh"))
        assert remark(carol) == "No acl config for carol-one"
        more = tmp_path / "conf" / "acl" / "more.yml"
        more.write_text("accounts: [{accessKey: carol-one, secretKey: abcdefgh, defaultTopicPerm: PUB}]\n")
        await until(lambda: not remark(carol))

        with capture_logs() as logs:
            more.write_text("accounts: [{accessKey: carol-one, secretKey: secretword, admin: tr")
            await until(lambda: [line for line in logs if line["event"] == "accounts_not_reloaded"])
        assert not remark(carol)
        assert "secretword" not in str(logs)
        for text in ("", "accounts: 2026-13-45"):
            with capture_logs() as logs:
                (tmp_path / "conf" / "plain_acl.yml").write_text(text)
                await until(lambda logs=logs: [line for line in logs if line["event"] == "accounts_not_reloaded"])
            assert not remark(desk.peer(Credentials("RocketMQ", "87654321")))
        (tmp_path / "conf" / "plain_acl.yml").write_text(FILE)

        more.unlink()
        await until(lambda: remark(carol) == "No acl config for carol-one")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accounts: {", "not YAML in line"),
        ("# later\n", "blank"),
        ("accounts: 2026-13-45", r"cannot hold.*\(ValueError\)"),
        ("accounts: !!bool '12345678'", r"cannot hold.*\(KeyError\)"),
        ("- a list", "the content is list"),
        ("accounts: 5", "accounts is a list"),
        ("accounts: [5]", "an account is int"),
        ("accounts: [{accessKey: short, secretKey: '12345678'}]", "more than 6 characters"),
        ("accounts: [{accessKey: rocketmq, secretKey: '12345678', topicPerms: [x]}]", "NAME=PERM"),
        ("globalWhiteRemoteAddresses: [nowhere]", "white list"),
        ("accounts: [{accessKey: rocketmq, secretKey: '12345678'}, {accessKey: rocketmq, secretKey: '12345678'}]", "twice"),
    ],
)
async def test_a_broker_does_not_start_with_a_file_that_cannot_be_read(tmp_path: Path, text: str, said: str) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(BadAccountFile, match=said), flatten_subgroups=True) as refused:
        async with open_plain(tmp_path, text):
            pass

    assert "12345678" not in repr(refused.value)


async def test_a_broker_does_not_start_without_the_file(tmp_path: Path) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(BadAccountFile, match="missing"), flatten_subgroups=True):
        async with open_desk(tmp_path, acl_enable=True):
            pass


async def test_the_files_may_be_in_rocketmqs_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(FILE)
    async with open_desk(tmp_path / "store", acl_enable=True, rocketmq_home=str(home)) as desk:
        assert remark(desk.peer(Credentials("stranger", "x"))) == "No acl config for stranger"
