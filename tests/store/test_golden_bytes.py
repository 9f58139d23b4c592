"""Files byte for byte as a RocketMQ 4.9.4 store was seen to write them."""

from __future__ import annotations

from pathlib import Path

from ledgermq.message.layout import decode_record

from .stores import SetClock, derive_all, incoming, small_store

STORE_TIME = 0x1A1FBDDAFCB
PROPERTIES = "KEYS\x01k1 k2\x02UNIQ_KEY\x01UK{}\x02TAGS\x01TagA"
FIRST_RECORD = (
    bytes.fromhex(
        "0000008A DAA320A7 77D18982 00000001 00000000 0000000000000000 0000000000000000 00000000 00000174876E807B"
        "7F0000010000D431 000001A1FBDDAFCB 7F00000100002A9F 00000000 0000000000000000 00000005 48656C6C6F"
        "09 546F70696354657374 0021"
    )
    + PROPERTIES.format(0).encode()
)


async def test_five_messages_make_the_files_that_rocketmq_makes(tmp_path: Path) -> None:
    """Log, filler, queue, index and checkpoint of five messages, two of which open a second segment, are RocketMQ's bytes."""
    clock = SetClock(wall=STORE_TIME)

    async with small_store(tmp_path, clock) as store:
        bodies = [b"Hello", b"Hello", bytes(1200), bytes(1200), bytes(1200)]
        for number, body in enumerate(bodies):
            await store.put_one(incoming(body, properties=PROPERTIES.format(number)))
        derive_all(store)
        message_id = decode_record(store.get("TopicTest", 1, 0, 1).slices[0]).message_id

    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert log[:138] == FIRST_RECORD
    assert message_id == "7F00000100002A9F0000000000000000"
    assert log[2942:2950].hex() == "00000482cbd43194"
    assert not any(log[2950:])
    assert (tmp_path / "commitlog" / f"{4096:020d}").read_bytes()[28:36].hex() == "0000000000001000"

    queue = (tmp_path / "consumequeue" / "TopicTest" / "1" / f"{0:020d}").read_bytes()
    assert len(queue) == 2000
    assert [queue[at : at + 20].hex() for at in range(0, 120, 20)] == [
        "00000000000000000000008a000000000027a807",
        "000000000000008a0000008a000000000027a807",
        "000000000000011400000535000000000027a807",
        "000000000000064900000535000000000027a807",
        "000000000000100000000535000000000027a807",
        "00" * 20,
    ]


async def test_the_index_of_five_messages_is_rocketmqs(tmp_path: Path) -> None:
    """Header, slots and entries of fifteen keys lie where RocketMQ puts them."""
    clock = SetClock(wall=STORE_TIME)

    async with small_store(tmp_path, clock) as store:
        for number in (0, 1, 0, 1, 2):
            body = b"Hello" if number < 2 else bytes(1200)
            await store.put_one(incoming(body, properties=PROPERTIES.format(number)))
        derive_all(store)

    (path,) = (tmp_path / "index").iterdir()
    index = path.read_bytes()
    assert len(index) == 480
    assert len(path.name) == 17
    assert index[32:40].hex() == "0000000500000010"
    assert [int.from_bytes(index[40 + 4 * slot : 44 + 4 * slot], "big") for slot in range(10)] == [
        0, 0, 0, 0, 14, 15, 10 - 3, 10, 13, 0,
    ]  # fmt: skip
    entries = [index[80 + 20 * number : 100 + 20 * number].hex() for number in range(16)]
    assert entries[1] == "05129f18" + "00" * 16
    assert entries[4] == "05129f19" + "000000000000008a" + "00" * 8
    assert entries[5] == "0029e6a8" + "000000000000008a" + "00000000" + "00000002"


async def test_a_clean_stop_leaves_the_files_rocketmq_leaves(tmp_path: Path) -> None:
    """The checkpoint holds the last store time twice and no index time, the abort file is gone, the lock says so."""
    clock = SetClock(wall=STORE_TIME)

    async with small_store(tmp_path, clock) as store:
        await store.put_one(incoming())
        assert (tmp_path / "abort").read_bytes() == b""

    checkpoint = (tmp_path / "checkpoint").read_bytes()
    assert len(checkpoint) == 4096
    assert checkpoint[:16] == STORE_TIME.to_bytes(8, "big") * 2
    assert not any(checkpoint[24:2048])
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "lock").read_bytes() == b"lock"
