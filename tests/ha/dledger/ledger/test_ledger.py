"""What a ledger must do on every disk: real files, memory, and the simulated disk."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import attrs
import pytest

from ledgermq.ha.dledger.ledger.checkpoint import CheckpointFile
from ledgermq.ha.dledger.ledger.layout import CHANNEL_CONFIGURATION, HEADER_SIZE
from ledgermq.ha.dledger.ledger.ledger import Ledger
from ledgermq.ha.dledger.ledger.walk import walk_entries
from ledgermq.ha.errors import CommittedEntries, CorruptLedger, LedgerGap
from ledgermq.message.layout import decode_record
from ledgermq.store.errors import NotWritable, RecordTooLarge, WrongSegmentSize
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import Disk

from ..ledgers import DISKS, FILE_SIZE, clear, content, copy_all, data_of, force, message, messages, open_small, sizes

Reopen = Callable[[], Ledger]


@pytest.fixture(params=DISKS)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Reopen]:
    """Opens the same ledger again and again, on each kind of disk."""
    disk, root = DISKS[request.param](tmp_path)
    opened: list[Ledger] = []

    def again() -> Ledger:
        for ledger in opened:
            ledger.close()
        opened.append(open_small(disk, root))
        return opened[-1]

    yield again
    for ledger in opened:
        ledger.close()


def test_records_have_their_places_when_they_are_appended(reopen: Reopen) -> None:
    """Bodies lie 48 bytes behind their entries, and each message names its own place."""
    ledger = reopen()
    placed = ledger.append(1, messages(0, 5))

    assert (placed.first_index, placed.last_index, placed.start, placed.end) == (0, 4, 0, ledger.end_position)
    for index, offset in enumerate(placed.offsets):
        assert ledger.place_of(index)[0] + HEADER_SIZE == offset
        record = ledger.record(offset, ledger.place_of(index)[1] - HEADER_SIZE)
        assert record is not None
        decoded = decode_record(record)
        assert (decoded.physical_offset, decoded.queue_offset) == (offset, index)


def test_what_was_appended_is_there_after_a_restart(reopen: Reopen) -> None:
    """Over several data and index files and terms."""
    ledger = reopen()
    for term in (1, 1, 3, 7):
        ledger.append(term, messages(ledger.end_index + 1, 17))
    before = content(ledger)
    assert len(ledger.data.files) > 2
    assert len(ledger.index.files) > 2

    ledger = reopen()
    assert content(ledger) == before
    assert (ledger.end_term, ledger.synced_index) == (7, 67)


def test_what_comes_before_the_checkpoint_is_not_read_again(reopen: Reopen) -> None:
    """Recovery begins where everything was synced, and the log goes on behind it."""
    ledger = reopen()
    ledger.append(2, messages(0, 30))
    force(ledger)
    ledger.commit(20)
    ledger.write_checkpoint()
    ledger.append(3, messages(30, 30))
    before = content(ledger)

    ledger = reopen()
    assert content(ledger) == before
    assert ledger.committed_index == 20
    assert ledger.committed_position == ledger.end_of(20)
    ledger.append(4, messages(60, 1))
    assert reopen().end_index == 60


def test_an_index_leads_to_a_position_and_back(reopen: Reopen) -> None:
    """A position inside an entry belongs to that entry."""
    ledger = reopen()
    assert ledger.index_at(0) == -1
    ledger.append(0, messages(0, 40))
    for index in range(40):
        position, size = ledger.place_of(index)
        assert ledger.index_at(position) == ledger.index_at(position + size - 1) == index
        assert ledger.end_of(index) == position + size


def test_slices_are_whole_entries_of_one_file(reopen: Reopen) -> None:
    """As many as fit, and at least one."""
    ledger = reopen()
    ledger.append(5, messages(0, 40))
    entry_size, index = ledger.place_of(0)[1], 0
    while index < 40:
        piece = ledger.slice_from(index, 3 * entry_size + 10)
        assert piece.first_index == index
        assert piece.position // FILE_SIZE == (piece.position + len(piece.entries) - 1) // FILE_SIZE
        assert piece.position + len(piece.entries) == ledger.end_of(piece.last_index)
        index = piece.last_index + 1
        assert len(piece.entries) == 3 * entry_size or index == 40 or ledger.place_of(index)[0] % FILE_SIZE == 0
    assert ledger.slice_from(3, 0).last_index == 3


def test_a_follower_has_the_leaders_bytes(reopen: Reopen) -> None:
    """Entries are appended as they lie in the leader's files, blank blocks included."""
    leader = reopen()
    for term, numbers in ((1, [0, 100, 2000, 3, 3500, 90]), (4, [4000 - 200, 5, 6]), (9, [700] * 9)):
        leader.append(term, sizes(numbers))
    disk = SimDisk()
    follower = open_small(disk)
    copy_all(leader, follower)

    assert content(follower) == content(leader)
    assert [bytes(file.view) for file in follower.data.files] == [bytes(file.view) for file in leader.data.files]
    assert [bytes(file.view) for file in follower.index.files] == [bytes(file.view) for file in leader.index.files]
    follower.close()
    assert content(open_small(disk)) == content(leader)


def test_an_overlapping_slice_is_appended_from_where_it_is_new(reopen: Reopen) -> None:
    """The follower may hold the first entries of a slice already."""
    leader, follower = reopen(), open_small(SimDisk())
    leader.append(1, messages(0, 4))
    leader.append(2, messages(4, 4))
    copy_all(leader, follower, slice_size=600)
    assert follower.end_index == 7
    follower.truncate(2)
    entries = bytes(leader.slice_from(0, FILE_SIZE).entries)
    walked = walk_entries(entries, 0, len(entries), position=0, next_index=0, term=-1, check_bodies=True)
    follower.append_walked(walked, entries, 2)

    assert content(follower) == content(leader)


def test_what_does_not_continue_the_ledger_is_refused(reopen: Reopen) -> None:
    """Another position, index or file size; nothing of it is appended."""
    leader, follower = reopen(), open_small(SimDisk(), file_size=2 * FILE_SIZE)
    leader.append(1, messages(0, 40))
    with pytest.raises(LedgerGap, match="mappedFileSizeCommitLog must be the same"):
        copy_all(leader, follower)
    assert 0 < follower.end_index < 38
    entries = bytes(leader.entry(39))
    walked = walk_entries(entries, 0, len(entries), position=leader.place_of(39)[0], next_index=39, term=1, check_bodies=True)
    with pytest.raises(LedgerGap, match="entry 39 of term 1 does not follow"):
        follower.append_walked(walked, entries)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_was_truncated_never_comes_back(reopen: Reopen, checkpointed: bool) -> None:
    """Neither bytes nor the blank block behind them; the next leader's entries take their place."""
    ledger = reopen()
    ledger.append(1, messages(0, 60))
    force(ledger)
    if checkpointed:
        ledger.write_checkpoint()
    before = content(ledger)
    for index in (50, 33, 12):
        ledger.truncate(index)
        assert (ledger.end_index, ledger.synced_index) == (index - 1, index - 1)
        ledger = reopen()
        assert content(ledger) == before[:index]
    ledger.append(2, [message(12, 5)])
    ledger = reopen()
    assert ledger.end_index == 12
    ledger.truncate(0)
    assert reopen().end_index == -1


def test_a_truncation_leaves_the_index_as_unsure_as_it_was() -> None:
    """Records of the index that a power cut may have lost must not be believed by the next start."""
    disk = SimDisk()
    ledger = open_small(disk)
    ledger.append(1, messages(0, 60))
    force(ledger)
    ledger.write_checkpoint()
    ledger.checkpoint = attrs.evolve(ledger.checkpoint, index_unsure=1)
    ledger.truncate(50)
    assert CheckpointFile(disk, "store/dledger-n0").load().index_unsure
    ledger.write_checkpoint()
    assert not CheckpointFile(disk, "store/dledger-n0").load().index_unsure


def test_a_ledger_whose_truncation_failed_refuses_appends_until_it_is_repeated() -> None:
    """The repair of a failed sync, which runs meanwhile, must not take the ledger for whole: index records are gone already."""
    disk = SimDisk()
    ledger = open_small(disk)
    ledger.append(1, messages(0, 10))
    before = content(ledger)
    disk.faults.sync_error = 1.0
    with pytest.raises(OSError, match=r"Input/output error"):
        ledger.truncate(5)
    disk.faults.sync_error = 0.0
    with pytest.raises(OSError, match="a failed truncation"):
        ledger.heal()
    with pytest.raises(NotWritable, match="refused to cut"):
        ledger.append(2, messages(10, 1))

    ledger.truncate(5)
    ledger.append(2, messages(5, 1))
    force(ledger)
    after = content(ledger)
    ledger.close()
    assert content(open_small(disk)) == after
    assert after[:5] == before[:5]
    assert [term for _, term, _ in after[5:]] == [2]


def test_a_truncation_for_which_there_is_no_room_changes_no_byte_of_a_backup() -> None:
    """The file has a second name there, and no copy of it can be made; not when the truncation is repeated either."""
    disk = SimDisk()
    ledger = open_small(disk)
    ledger.append(1, messages(0, 25))
    first, backup = ledger.data.files[0], "backup"
    disk.link(first.path, backup)
    before = bytes(first.view)
    disk.faults.capacity = 1
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            ledger.truncate(5)
    assert disk.open(backup).read(0, FILE_SIZE) == before

    disk.faults.capacity = None
    ledger.truncate(5)

    assert len(content(ledger)) == 5
    assert disk.open(backup).read(0, FILE_SIZE) == before


def test_committed_entries_are_not_truncated(reopen: Reopen) -> None:
    """It says what to do instead."""
    ledger = reopen()
    ledger.append(1, messages(0, 10))
    ledger.commit(5)
    with pytest.raises(CommittedEntries, match="compare the stores"):
        ledger.truncate(5)
    ledger.truncate(6)
    assert ledger.end_index == 5


def test_a_cleared_ledger_begins_at_the_given_index(reopen: Reopen) -> None:
    """A follower that is too far behind begins at the beginning of the leader's oldest file."""
    ledger = reopen()
    ledger.append(1, messages(0, 60))
    force(ledger)
    ledger.write_checkpoint()
    clear(ledger, 1000, 5 * FILE_SIZE, 3)
    ledger = reopen()
    assert (ledger.begin_index, ledger.end_index, ledger.end_position, ledger.term_of(999)) == (1000, 999, 5 * FILE_SIZE, 3)
    placed = ledger.append(4, messages(0, 3))
    assert (placed.first_index, placed.offsets[0]) == (1000, 5 * FILE_SIZE + HEADER_SIZE)
    ledger = reopen()
    assert (ledger.begin_index, ledger.end_index) == (1000, 1002)


def test_the_files_of_a_cleared_ledger_are_deleted_apart_from_taking_them_out() -> None:
    """The one is short, on the event loop, and the other may take long, on a worker."""
    disk = SimDisk()
    ledger = open_small(disk)
    ledger.append(1, messages(0, 60))
    before = data_of(disk)

    ledger.clear(1000, 5 * FILE_SIZE, 3)

    assert (ledger.empty, ledger.data.files, data_of(disk)) == (True, [], before)
    with pytest.raises(NotWritable, match="former entries are not deleted yet"):
        ledger.append(4, messages(0, 1))
    ledger.delete_cleared()
    assert not data_of(disk)
    assert ledger.append(4, messages(0, 1)).first_index == 1000


def test_old_files_expire_but_never_what_is_not_committed(reopen: Reopen) -> None:
    """The term before the first entry stays known, after a restart too."""
    ledger = reopen()
    for term in range(8):
        ledger.append(term, messages(term * 20, 20))
    force(ledger)
    before, first_files = content(ledger), len(ledger.data.files)
    assert ledger.forget_before(ledger.end_position) == 0
    ledger.commit(100)
    deleted = ledger.forget_before(ledger.end_position)
    ledger.delete_forgotten()

    assert 0 < deleted < first_files
    begin = ledger.begin_index
    assert ledger.begin_position == ledger.place_of(begin)[0] == deleted * FILE_SIZE
    assert ledger.term_of(begin - 1) == before[begin - 1][1]
    ledger = reopen()
    assert content(ledger) == before[begin:]
    assert ledger.term_of(begin - 1) == before[begin - 1][1]
    assert ledger.term_of(begin - 2) is None


def test_configurations_are_found_again(reopen: Reopen) -> None:
    """By their index, whether recovery walks over them or the checkpoint holds them; the newest expired one stays known."""
    ledger = reopen()
    for number in range(4):
        ledger.append(1, messages(20 * number, 20))
        ledger.append(1, [b"group %d" % number], patch=False, channel=CHANNEL_CONFIGURATION)
    expected = [(20, b"group 0"), (41, b"group 1"), (62, b"group 2"), (83, b"group 3")]
    assert ledger.configurations == expected
    ledger = reopen()
    assert ledger.configurations == expected
    ledger.write_checkpoint()
    ledger.truncate(83)
    ledger = reopen()
    assert ledger.configurations == expected[:3]
    ledger.commit(62)
    ledger.forget_before(ledger.end_of(62))
    ledger.delete_forgotten()
    assert ledger.begin_index > 41
    assert ledger.configurations == expected[1:3]


def test_a_record_that_fits_no_file_is_refused(reopen: Reopen) -> None:
    """The last 8 bytes of a file never belong to an entry."""
    ledger = reopen()
    room = FILE_SIZE - 8 - HEADER_SIZE
    ledger.append(0, [bytes(room)], patch=False)
    with pytest.raises(NotWritable, match="is larger than the"):
        ledger.append(0, [bytes(room + 1)], patch=False)
    assert reopen().end_index == 0


def test_a_ledger_continues_an_older_log() -> None:
    """Index 0 lies where the older log ended."""
    disk, root = SimDisk(), "store"
    ledger = open_small(disk, root, first_position=3 * FILE_SIZE)
    assert (ledger.begin_position, ledger.end_position, ledger.committed_position) == (3 * FILE_SIZE,) * 3
    assert ledger.append(0, messages(0, 3)).offsets[0] == 3 * FILE_SIZE + HEADER_SIZE
    ledger.close()
    assert sorted(data_of(disk)) == [f"{3 * FILE_SIZE:020d}"]
    assert open_small(disk, root).end_index == 2


def damage(disk: Disk, name: str, position: int) -> None:
    file = disk.open(f"store/dledger-n0/{name}")
    byte = file.read(position, 1)[0]
    file.write(bytes([byte ^ 1]), position)
    file.close()


def synced_ledger(disk: Disk, count: int) -> Ledger:
    """A ledger that is on the medium as a whole, and whose checkpoint says so."""
    ledger = open_small(disk)
    ledger.append(1, messages(0, count))
    force(ledger)
    ledger.write_checkpoint()
    return ledger


def test_damage_of_what_was_synced_stops_the_start() -> None:
    """A node that lost what it had acknowledged must not vote; the text names file, place and ways out."""
    disk = SimDisk()
    ledger = synced_ledger(disk, 40)
    place = ledger.place_of(39)[0] - ledger.data.files[-1].start
    name = ledger.data.files[-1].path.rpartition("/")[2]
    ledger.close()
    damage(disk, f"data/{name}", place + 100)
    before = data_of(disk)

    with pytest.raises(CorruptLedger, match=r"dledger-n0/data: entry 39 at position .* filled by the leader again"):
        open_small(disk)
    assert data_of(disk) == before


def test_a_torn_tail_is_cut() -> None:
    """No producer was answered that what came after the last sync is safe."""
    disk = SimDisk()
    ledger = synced_ledger(disk, 3)
    ledger.append(1, messages(3, 3))
    place = ledger.place_of(4)[0]
    ledger.close()
    damage(disk, "data/" + "0" * 20, place + 100)

    ledger = open_small(disk)
    assert ledger.end_index == 3
    assert not any(ledger.data.files[0].view[ledger.end_position :])


def test_a_lost_index_is_made_anew() -> None:
    """It holds nothing that the data files do not say."""
    disk = SimDisk()
    ledger = synced_ledger(disk, 40)
    before = content(ledger)
    index = [bytes(file.view) for file in ledger.index.files]
    ledger.close()
    disk.remove_tree("store/dledger-n0/index")

    ledger = open_small(disk)
    assert content(ledger) == before
    assert [bytes(file.view) for file in ledger.index.files] == index


def test_files_that_do_not_fit_together_are_refused() -> None:
    """Another size, a missing file in the middle, or no file where there was one."""
    disk = SimDisk()
    synced_ledger(disk, 60).close()
    with pytest.raises(WrongSegmentSize):
        open_small(disk, file_size=2 * FILE_SIZE)
    disk.remove(f"store/dledger-n0/data/{FILE_SIZE:020d}")
    with pytest.raises(CorruptLedger, match="do not follow one another"):
        open_small(disk)
    disk.remove_tree("store/dledger-n0/data")
    with pytest.raises(CorruptLedger, match="no file is there, but the node had entries up to 59"):
        open_small(disk)


def test_a_ledger_with_a_given_beginning_knows_the_term_before(reopen: Reopen) -> None:
    """And the configuration, though the process was killed at once, or before any entry behind it had been synced."""
    ledger = reopen()
    clear(ledger, 1000, 5 * FILE_SIZE, 3, [(700, b"group")])
    ledger = reopen()
    assert ledger.configurations == [(700, b"group")]
    ledger.append(4, messages(0, 3))
    ledger = reopen()
    assert (ledger.term_of(999), ledger.end_index) == (3, 1002)
    assert ledger.configurations == [(700, b"group")]


def test_files_that_come_back_after_they_expired_are_deleted_again() -> None:
    """A power cut may undo a deletion; what leads to their entries was not synced any more."""
    disk = SimDisk()
    ledger = open_small(disk)
    ledger.append(1, messages(0, 60))
    force(ledger)
    ledger.commit(50)
    assert ledger.forget_before(ledger.end_position) > 1
    ledger.write_checkpoint()
    begin = ledger.begin_index
    disk = disk.power_cut(3)
    ledger = open_small(disk)
    assert (ledger.begin_index, ledger.end_index, ledger.term_of(begin - 1)) == (begin, 59, 1)
    assert [index for index, _, _ in content(ledger)] == list(range(begin, 60))
    assert min(data_of(disk)) == f"{ledger.begin_position:020d}"


@pytest.mark.parametrize("inside", [8, 1504, FILE_SIZE - 600])
@pytest.mark.parametrize("how", ["in order", "without a checkpoint", "without the index"])
def test_a_ledger_that_begins_inside_a_file_starts_again(inside: int, how: str) -> None:
    """A leader's first entry may lie anywhere, if that leader itself was filled from there on."""
    begin = 5 * FILE_SIZE + inside
    source, disk = open_small(SimDisk(), first_position=begin), SimDisk()
    source.begin_at(10, begin, 3)
    source.append(3, messages(0, 40))
    ledger = open_small(disk)
    clear(ledger, 10, begin, 3)

    copy_all(source, ledger)
    force(ledger)
    if how != "without a checkpoint":
        ledger.write_checkpoint()
    assert ledger.begin_position == begin
    assert data_of(disk)
    ledger.close()
    if how == "without the index":
        for name in disk.list_directory("store/dledger-n0/index"):
            disk.remove(f"store/dledger-n0/index/{name}")
    for _ in range(2):
        ledger = open_small(disk)

        assert (ledger.begin_index, ledger.begin_position, ledger.term_of(9)) == (10, begin, 3)
        assert content(ledger) == content(source)
        ledger.write_checkpoint()
        ledger.close()
    ledger = open_small(disk)
    ledger.commit(30)
    assert ledger.forget_before(ledger.end_position) > 0
    ledger.delete_forgotten()
    begin_index = ledger.begin_index
    ledger.close()
    assert (open_small(disk).begin_index, begin_index > 10) == (begin_index, True)


def test_an_entry_that_is_too_large_is_refused_by_the_limit_that_it_exceeds() -> None:
    """That of DLedger's entries is 4 MiB, however large the files are."""
    ledger = open_small(SimDisk(), file_size=8 * 1024 * 1024)
    with pytest.raises(
        RecordTooLarge, match="an entry of 4194305 bytes is larger than the 4194304 that DLedger allows for one"
    ):
        ledger.append(1, [bytes(4 * 1024 * 1024 - 48 + 1)], patch=False)
    ledger.append(1, [bytes(4 * 1024 * 1024 - 48)], patch=False)

    small = open_small(SimDisk())
    with pytest.raises(RecordTooLarge, match=f"larger than the {FILE_SIZE - 8} that a file of the ledger takes"):
        small.append(1, [bytes(FILE_SIZE)], patch=False)
