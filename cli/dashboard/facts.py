"""What the pages about topics, groups and messages show, made from the answers of brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import attrs
import trio

from ...client.admin.errors import NoSuchGroup
from ...client.admin.values import Connection, GroupPosition, QueueRange, Right, User
from ...client.errors import InvalidArgument, NotFound
from ...message.errors import JsonError
from ...message.json import message_queue_of
from ...message.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue, StoredMessage
from ...message.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC
from ...message.units import QueueId
from ...world.address import Address
from ..group import SYSTEM_GROUPS
from ..redrive import REDRIVE_PREFIX
from ..topic import of_applications
from .survey import ANSWER_SECONDS, Survey

REQUESTS_MAX = 2000
"""How many requests a page sends at most to learn the lags of groups."""
ROWS_PER_PAGE = 50
LETTERS_PER_PAGE = 20
ASKED_MAX = 20
"""How many members of a group are asked for their queues, and how many groups what became of a message."""
FOUND_MAX = 32
"""How many messages a search shows from each broker."""


@attrs.frozen
class Paged:
    """The rows of one page of a long list."""

    rows: Any
    number: int
    pages: int
    count: int
    """How many rows the list has."""


def paged(rows: Sequence[Any], number: int, size: int = ROWS_PER_PAGE) -> Paged:
    """Cut the page with a number out of a list; a number beyond the end means the last page."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    return Paged(rows[(number - 1) * size : number * size], number, pages, len(rows))


@attrs.frozen
class TopicRow:
    """A topic in the list."""

    topic: str
    queues: int
    messages: int
    newest_ms: int


async def list_topics(survey: Survey, find: str, number: int) -> Paged:
    """One page of the topics of applications whose names contain `find`."""
    admin = survey.admin
    topics = of_applications(await admin.topics(), await admin.cluster())
    page = paged([topic for topic in topics if find in topic], number)
    stats = await survey.ask(survey.everywhere(page.rows), lambda broker, topic: admin.topic_stats(topic, broker=broker))
    held: dict[str, list[QueueRange]] = {topic: [] for topic in page.rows}
    for (_, topic), queues in stats.items():
        held[topic] += queues.values()
    rows = [
        TopicRow(
            topic,
            len(ranges),
            sum(each.max_offset - each.min_offset for each in ranges),
            max((each.last_update_timestamp for each in ranges), default=0),
        )
        for topic, ranges in held.items()
    ]
    return attrs.evolve(page, rows=rows)


async def queues_of_topic(survey: Survey, topic: str) -> dict[MessageQueue, QueueRange]:
    """The queues of a topic at all masters."""
    stats = await survey.ask(survey.everywhere([topic]), lambda broker, _: survey.admin.topic_stats(topic, broker=broker))
    return dict(sorted((queue, held) for answer in stats.values() for queue, held in answer.items()))


async def lags_in_topic(survey: Survey, topic: str) -> list[tuple[str, int]]:
    """How far each group that reads a topic is behind in it, those furthest behind first; at most `ROWS_PER_PAGE` groups."""
    admin = survey.admin
    readers = await survey.ask(survey.everywhere([topic]), lambda broker, _: admin.topic_groups(topic, broker=broker))
    groups = sorted({group for names in readers.values() for group in names})[:ROWS_PER_PAGE]
    return (await _lags(survey, groups, topic)).most_common()


async def _lags(survey: Survey, groups: Sequence[str], topic: str | None = None) -> Counter[str]:
    """How far groups are behind, in one topic or in all of theirs."""
    stats = await survey.ask(
        survey.everywhere(groups), lambda broker, group: survey.admin.group_stats(group, topic, broker=broker)
    )
    lags = Counter(dict.fromkeys(groups, 0))
    for (_, group), positions in stats.items():
        lags[group] += sum(position.lag for position in positions.values())
    return lags


@attrs.frozen
class GroupRow:
    """A consumer group in the list."""

    group: str
    lag: int | None
    """None if it was not asked for."""
    letters: bool
    """Whether it has ever had a dead letter."""


async def list_groups(survey: Survey, find: str, number: int) -> tuple[Paged, int]:
    """One page of the groups whose names contain `find`, those furthest behind first; and how many were asked for lags."""
    admin = survey.admin
    tables = await survey.ask(survey.everywhere([""]), lambda broker, _: admin.groups(broker=broker))
    names = sorted({name for table in tables.values() for name in table if find in name and name not in SYSTEM_GROUPS})
    asked = names[: max(ROWS_PER_PAGE, REQUESTS_MAX // max(1, len(survey.masters)))]
    lags = await _lags(survey, asked)
    with_letters = set(await admin.topics())
    rows = [GroupRow(name, lags.get(name), DLQ_PREFIX + name in with_letters) for name in names]
    rows.sort(key=lambda row: -1 if row.lag is None else row.lag, reverse=True)
    return paged(rows, number), len(asked)


@attrs.frozen
class GroupFacts:
    """The positions and the members of a group."""

    positions: Mapping[MessageQueue, GroupPosition]
    owners: Mapping[MessageQueue, str]
    """The client that reads each queue, as the members say."""
    members: Sequence[Connection]
    lost: int
    """How many messages were deleted before the group had read them."""

    @property
    def lag(self) -> int:
        """How many messages the group is behind in all its queues."""
        return sum(position.lag for position in self.positions.values())


async def ask_group(survey: Survey, group: str) -> GroupFacts:
    """Ask all masters about a group, and its members through them.

    Raises:
        NoSuchGroup: all brokers answered, and none has it.
    """
    admin, here = survey.admin, list(survey.everywhere([group]))
    stats = await survey.ask(here, lambda broker, _: admin.group_stats(group, broker=broker))
    if not stats and survey.complete:
        raise NoSuchGroup(group)
    lost = await survey.ask(here, lambda broker, _: admin.lost_messages(group, broker=broker))
    online = await survey.ask(here, lambda broker, _: admin.group_connections(group, broker=broker))
    members = {member.client_id: member for answer in online.values() for member in answer.members}
    asked = [(client_id, group) for client_id in sorted(members)[:ASKED_MAX]]
    infos = await survey.ask(asked, lambda client_id, _: admin.running_info(group, client_id))
    return GroupFacts(
        dict(sorted((queue, position) for answer in stats.values() for queue, position in answer.items())),
        {queue: client_id for (client_id, _), info in infos.items() for queue in _queues_in(info)},
        [members[client_id] for client_id in sorted(members)],
        sum(count for table in lost.values() for count in table.values()),
    )


def _queues_in(info: Mapping[str, Any]) -> list[MessageQueue]:
    """The queues in a member's report; a malformed one owns none."""
    try:
        return [message_queue_of(key) for key in info.get("mqTable") or ()]
    except (JsonError, ValueError, TypeError, KeyError):
        return []


@attrs.frozen
class Letter:
    """A dead letter of a group."""

    broker: str
    message: StoredMessage
    origin: str
    """The topic from which the group had it."""
    redriven: bool
    """Whether it was handed out again."""


async def ask_letters(survey: Survey, group: str, number: int) -> tuple[Paged, int]:
    """One page of a group's dead letters, the newest of each broker first; and how many were not handed out again yet."""
    admin, topic = survey.admin, DLQ_PREFIX + group
    held = await queues_of_topic(survey, topic)
    reader = REDRIVE_PREFIX + group
    positions = await survey.ask(survey.everywhere([topic]), lambda broker, _: admin.group_stats(reader, topic, broker=broker))
    done = {queue: each.consumer_offset for answer in positions.values() for queue, each in answer.items()}
    offsets = {queue: range(each.min_offset, each.max_offset)[::-1] for queue, each in held.items()}
    page = paged(range(sum(map(len, offsets.values()))), number, LETTERS_PER_PAGE)
    asked = [(queue.broker_name, (queue, offset)) for queue, offset in _places(offsets, page.rows)]
    found = await survey.ask(asked, lambda _, place: admin.message_at(*place))
    rows = [
        Letter(
            broker,
            message,
            message.properties.get(DLQ_ORIGIN_TOPIC) or message.properties.get(RETRY_TOPIC) or message.topic,
            offset < done.get(queue, 0),
        )
        for (broker, (queue, offset)), message in found.items()
    ]
    left = sum(each.max_offset - max(each.min_offset, done.get(queue, 0)) for queue, each in held.items())
    return attrs.evolve(page, rows=rows), left


def _places(offsets: Mapping[MessageQueue, range], wanted: range) -> Iterator[tuple[MessageQueue, int]]:
    """The places with these numbers among all offsets of some queues, without a list of all."""
    first = 0
    for queue, held in offsets.items():
        chosen = held[max(0, wanted.start - first) : max(0, wanted.stop - first)]
        yield from ((queue, offset) for offset in chosen)
        first += len(held)


async def find_messages(survey: Survey, topic: str, text: str) -> list[tuple[str, StoredMessage]]:
    """The messages of a topic with an id or a key, oldest first, each with its broker; at most `FOUND_MAX` from a broker."""
    admin, here = survey.admin, list(survey.everywhere([text]))
    by_key = await survey.ask(here, lambda broker, _: admin.messages_by_key(topic, text, messages_max=FOUND_MAX, broker=broker))
    by_id = await survey.ask(here, lambda broker, _: admin.messages_by_unique_key(topic, text, broker=broker))
    names = survey.names
    answers = [*by_key.items(), *by_id.items()]
    found = [(names[broker], message) for (broker, _), messages in answers for message in messages]
    if not found:
        with suppress(NotFound, InvalidArgument), trio.move_on_after(ANSWER_SECONDS):
            message = await admin.message_by_id(text, topic)
            stored_at = str(Address(*message.store_host))
            found = [(names[stored_at], message)] if stored_at in names else []
    places = {(broker, each.queue_id, each.queue_offset): (broker, each) for broker, each in found}
    return sorted(places.values(), key=lambda item: item[1].store_timestamp)


@attrs.frozen
class Reader:
    """What became of a message in one group."""

    group: str
    position: int | None
    """Where the group is in the queue of the message; None if it has no position there."""
    retries: int
    dead: int
    """How often the message is among the dead letters of the group."""


async def ask_way(survey: Survey, broker: str, message: StoredMessage) -> list[Reader]:
    """What each group of a topic has done with a message that is stored at `broker`; at most `ASKED_MAX` groups."""
    admin, address = survey.admin, survey.masters.get(broker)
    if address is None:
        return []
    queue = MessageQueue(message.topic, broker, QueueId(message.queue_id))
    readers = await survey.ask([(address, queue.topic)], lambda at, topic: admin.topic_groups(topic, broker=at))
    groups = sorted({group for answer in readers.values() for group in answer})[:ASKED_MAX]
    asked = [(address, group) for group in groups]
    stats = await survey.ask(asked, lambda at, group: admin.group_stats(group, queue.topic, broker=at))
    positions = {group: answer[queue].consumer_offset for (_, group), answer in stats.items() if queue in answer}
    known, key = set(await admin.topics()), message.unique_key or ""
    copies = [prefix + group for prefix, group in product((RETRY_PREFIX, DLQ_PREFIX), groups) if prefix + group in known]
    found = await survey.ask(
        survey.everywhere(copies if key else ()), lambda at, topic: admin.messages_by_unique_key(topic, key, broker=at)
    )
    counts: Counter[str] = Counter()
    for (_, topic), messages in found.items():
        counts[topic] += len(messages)
    return [Reader(group, positions.get(group), counts[RETRY_PREFIX + group], counts[DLQ_PREFIX + group]) for group in groups]


@attrs.frozen
class UserRow:
    """A user in the list, with what it may do unless it is a super user."""

    broker: str
    user: User
    rights: Sequence[Right]


async def list_users(survey: Survey, find: str, number: int) -> Paged:
    """One page of the users whose names contain `find`; each broker has users of its own."""
    admin, names, here = survey.admin, survey.names, list(survey.everywhere([find]))
    users = await survey.ask(here, lambda broker, _: admin.users(find, broker=broker))
    rights = await survey.ask(here, lambda broker, _: admin.rights(broker=broker))
    of_user: dict[tuple[str, str], list[Right]] = {}
    for right in (right for answer in rights.values() for right in answer):
        of_user.setdefault((right.broker, right.user), []).append(right)
    rows = [
        UserRow(names[broker], user, of_user.get((broker, user.name), ()))
        for (broker, _), answer in users.items()
        for user in answer
    ]
    return paged(sorted(rows, key=lambda row: (row.user.name, row.broker)), number)
