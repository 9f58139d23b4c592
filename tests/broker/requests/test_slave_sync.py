"""What a master tells its slaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.ha.classic.sync import ONLY_LOGGED_FIELD
from ledgermq.ha.classic.table_proofs import NONCE_FIELD, PROOF_FIELD, is_proved
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode

from ..desk import open_desk

NONCE, SECRET = "0a" * 32, b"shared"


@pytest.mark.parametrize("code", [21, 43, 45, 201])
async def test_every_table_is_proved_to_who_asks(tmp_path: Path, code: int) -> None:
    """With the secret of the configuration; an Apache slave, which sends no nonce, gets the same body."""
    async with open_desk(tmp_path, ha_secret=SECRET.decode()) as desk:
        desk.broker.offsets.commit("g", "T", 0, 5)
        peer = desk.peer()
        proved = await peer.ask_waiting(code, {NONCE_FIELD: NONCE})
        plain = await peer.ask_waiting(code)

    assert is_proved(SECRET, NONCE, code, proved.body, proved.ext[PROOF_FIELD])
    assert PROOF_FIELD not in plain.ext
    assert plain.body == proved.body


async def test_offsets_come_with_bare_keys_or_as_strict_json(tmp_path: Path) -> None:
    """However many there are: four hundred thousand do not fit one turn of the event loop."""
    async with open_desk(tmp_path) as desk:
        for number in range(2000):
            desk.broker.offsets.commit(f"g{number}", "T\u4e3b", 0, number)
            desk.broker.offsets.commit(f"g{number}", "T\u4e3b", 1, -1)
        bare = await desk.peer().ask_waiting(RequestCode.GET_ALL_CONSUMER_OFFSET)
        strict = await desk.peer().ask_waiting(RequestCode.GET_ALL_CONSUMER_OFFSET, {"acceptStandardJsonOnly": "true"})

    expected = {f"T\u4e3b@g{number}": {"0": number, "1": -1} for number in range(2000)}
    assert b"{0:7,1:-1}" in bare.body
    assert b'{"0":7,"1":-1}' in strict.body
    assert loads(bare.body)["offsetTable"] == loads(strict.body)["offsetTable"] == expected


async def test_a_slave_is_given_no_commit_that_the_master_may_still_lose(tmp_path: Path) -> None:
    """A commit is seen before it is in the log; only a slave that derives the tables asks for the offsets of the log."""
    async with open_desk(tmp_path) as desk:
        desk.broker.offsets.apply("T", "g", 0, 3, own=False)
        desk.broker.offsets.commit("g", "T", 0, 5)
        desk.broker.offsets.commit("g", "T", 1, 7)
        logged = await desk.peer().ask_waiting(RequestCode.GET_ALL_CONSUMER_OFFSET, {ONLY_LOGGED_FIELD: "true"})
        seen = await desk.peer().ask_waiting(RequestCode.GET_ALL_CONSUMER_OFFSET)

    assert loads(logged.body)["offsetTable"] == {"T@g": {"0": 3}}
    assert loads(seen.body)["offsetTable"] == {"T@g": {"0": 5, "1": 7}}
