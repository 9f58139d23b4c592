"""The put path: SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, together for all requests of one receive.

One run of send requests becomes one put and one write of answers. If the mode waits for a flush or for slaves, the answers of
the run wait together in one callback. Batches have a put of their own; delayed messages and retries take slower branches.
If a run creates a topic, its answers wait until the name servers know the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import trio

from ...message.batch import decode_batch
from ...message.data_version import DataVersion
from ...message.errors import CorruptBatch
from ...message.flags import HOST_BITS, PERM_WRITE, TRANSACTION_MASK
from ...message.message import RETRY_PREFIX, IncomingMessage, StoredMessage
from ...message.numbers import int_of, long_of
from ...message.properties import (
    CLUSTER,
    COPY_BYTES,
    DELAY,
    NAME_END,
    PROPERTIES_BYTES_MAX,
    PROPERTY_END,
    SEND_NUMBER_MARK,
    SENT_PROPERTIES_BYTES_MAX,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    WAIT,
    decode_properties,
    encode_properties,
    find_property,
    join_properties,
)
from ...message.send_number import OFFSETS_FIELD, REQUEST_FIELD, SendNumber, number_property, without_number
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import ONEWAY_FLAG, RemotingCommand, encode_frame
from ...remoting.dispatcher import Dispatcher, Postponed
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.log.queue_files import NEW_FILES_PER_TURN_MAX
from ...store.message_store import MessageStore
from ...store.put_side import PutBatch
from ...store.statuses import PutStatus
from ...world.randomness import Randomness
from ..divert import divert_delayed, redirect_retry
from ..live_config import LiveConfig
from ..registration import Registration
from ..stats import Stats
from ..tables.groups import GroupTable
from ..tables.numbered_sends import NumberedSends, number_of_sender, repeated_fields
from ..tables.table_log import TableLog
from ..tables.topics import DLQ_QUEUES, NOT_FOR_CLIENTS, TopicConfig, TopicTable, topic_name_fault
from .plain_sends import PlainSends, born_host
from .postponed_sends import PostponedSends
from .put_outcomes import UNKNOWN_REMARK, count_puts, response_code
from .send_answers import HeldAnswers, Push, SendAnswers

SEND_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)

# SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE have single letters as field names, SEND_MESSAGE has full names.
_LONG_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}

_SHORT_PROPERTIES = SENT_PROPERTIES_BYTES_MAX // 4
"""Properties of up to this many characters are within the limit, however many bytes each character takes."""
_RECORD_EXTRA = 512
"""The most bytes of a record beside body and properties, with the header of a ledger's entry and the filler of a segment."""
BATCH_ITEMS_MAX = 10_000
"""The most messages of one batch, for example 4 MiB of messages of 400 bytes. A larger batch is refused, because a batch is
put in one turn of the event loop."""

_PUT_OK = PutStatus.PUT_OK
_NO_WAIT_MARK = f"{WAIT}{NAME_END}false"
_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)


class _Numbers(dict[str, int]):
    """The numbers of the fields of send requests: small ones are looked up, which is faster than reading them."""

    def __missing__(self, text: str) -> int:
        return long_of(text)


_NUMBERS = _Numbers({str(number): number for number in range(-1, 1024)})
_Sent = tuple[RemotingCommand, int, int]
"""A request, the index of its message in the put, and its queue id."""


@attrs.define(eq=False, kw_only=True, repr=False)
class SendHandler:
    """Turns send requests into puts."""

    config: LiveConfig
    store: MessageStore
    topics: TopicTable
    table_log: TableLog
    groups: GroupTable
    stats: Stats
    randomness: Randomness
    orderly: Callable[[str], bool]
    """Whether members of a group have locked queues."""
    registration: Registration
    numbered: NumberedSends
    record_max: tuple[int, str]
    """The most bytes that the log takes for one record, and in what."""
    _postponed: PostponedSends = attrs.field(init=False)
    _dispatcher: Dispatcher = attrs.field(init=False)
    _cluster: str = attrs.field(init=False)
    _small_body: int = attrs.field(init=False)
    """Copies of messages with bodies of up to this size fit a segment of the log."""
    _answers: SendAnswers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._small_body = self.record_max[0] - PROPERTIES_BYTES_MAX - _RECORD_EXTRA
        self._cluster = encode_properties({CLUSTER: self.config.now.broker_cluster_name})
        self._answers = SendAnswers(self.config.now.region_id, self.config.now.trace_on, self.store.store_host.hex().upper())

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handler."""
        self._dispatcher = dispatcher
        self._postponed = PostponedSends(dispatcher, lambda connection, requests: self._handle(connection, requests, None))
        dispatcher.register_run(SEND_CODES, self.handle)
        plain_sends = PlainSends(
            store=self.store,
            config=self.config,
            stats=self.stats,
            answers=self._answers,
            queue_nums_of=self._plain_queue_nums,
            body_max=self._small_body,
            addition=self._cluster.encode(),
        )
        dispatcher.take_sends = plain_sends.take

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        """Put the messages of a run of requests, and answer each request; returns how many were taken in this turn."""
        return self._handle(connection, requests, self.topics.version)

    def _handle(self, connection: ServerConnection, requests: list[RemotingCommand], version: DataVersion | None) -> int:
        """Do the same; answers are held until the name servers know topics that were created since `version`."""
        messages: list[IncomingMessage] = []
        sent: list[_Sent] = []
        host = born_host(connection)
        admit = self._admit
        topic, queue_nums = "", 0
        body_max = self.config.now.max_message_size
        self.numbered.putting.clear()
        taken, files_left = len(requests), NEW_FILES_PER_TURN_MAX
        may_need_files = taken > files_left
        for at, request in enumerate(requests):
            if files_left <= 0:
                taken = at
                break
            if request.code == _SEND_MESSAGE:
                request.ext = {_LONG_NAMES.get(name, name): value for name, value in request.ext.items()}
            ext = request.ext
            try:
                if ext["b"] != topic or not queue_nums:
                    topic = ext["b"]
                    queue_nums = self._plain_queue_nums(topic)
                if len(request.body) > body_max:
                    _check_body(topic, len(request.body), body_max)
                if ext.get("m") != "true":
                    number = None
                    if REQUEST_FIELD in ext:
                        number = number_of_sender(ext[REQUEST_FIELD], ext)
                        if self.numbered.is_being_put(number):
                            self._put(self._push_to(connection, version), messages, sent)
                            messages, sent = [], []
                        if self._answer_if_repeated(connection, request, number):
                            continue
                    sent.append((request, len(messages), admit(request, queue_nums, host, messages, number)))
                    if may_need_files:
                        files_left -= self.store.needs_file(messages[-1].topic, messages[-1].queue_id)
                    continue
                if messages:  # first, to keep the order of one client's messages
                    self._put(self._push_to(connection, version), messages, sent)
                    messages, sent = [], []
                files_left -= self.store.needs_file(topic, _NUMBERS[ext["e"]])
                self._put_batch(connection, request, host, version)
            except Postponed as postponed:
                if messages:  # first, because the request may wait long
                    self._put(self._push_to(connection, version), messages, sent)
                    messages, sent = [], []
                self._postponed.add(connection, request, postponed.ready)
            except RequestRefused as error:
                self.stats.put_failed(1)
                connection.answer(request, error.code, remark=error.remark)
            except (KeyError, ValueError) as error:
                self.stats.put_failed(1)
                connection.answer(request, ResponseCode.SYSTEM_ERROR, remark=_bad_field(request, error))
        if messages:
            self._put(self._push_to(connection, version), messages, sent)
        return taken

    def _push_to(self, connection: ServerConnection, version: DataVersion | None) -> Push:
        """What sends answers to a peer: at once, unless a topic was created since this version and has no route yet."""
        if self.topics.version is version or self.registration.is_known():
            return connection.push
        held = HeldAnswers(connection.push)
        self._dispatcher.start_soon(held.release_after, self.registration.known)
        return held.push

    def _plain_queue_nums(self, topic: str) -> int:
        """The number of write queues of a topic that needs no further checks; 0 if each message must be checked."""
        config = self.topics.topics.get(topic)
        if config is None or topic.startswith(RETRY_PREFIX) or not self._takes_messages(config) or self._is_awaited(topic):
            return 0
        return config.write_queue_nums

    def _is_awaited(self, topic: str) -> bool:
        """Whether messages for a topic have to wait for a change of it, or behind others that do."""
        return topic in self._postponed or self.table_log.is_changing(topic)

    def _takes_messages(self, config: TopicConfig) -> bool:
        """Whether clients may write to a topic, and the topic has queues from which messages can be read."""
        allowed = config.perm & self.config.now.broker_permission & PERM_WRITE
        return bool(allowed and config.read_queue_nums) and config.topic_name not in NOT_FOR_CLIENTS

    def _admit(
        self,
        request: RemotingCommand,
        queue_nums: int,
        host: bytes,
        messages: list[IncomingMessage],
        number: SendNumber | None,
    ) -> int:
        """Append the request's message to `messages`; return the queue that it asked for or that was chosen for it.

        Args:
            queue_nums: the result of `_plain_queue_nums` for its topic.
        """
        ext = request.ext
        topic, queue_id, born = ext["b"], _NUMBERS[ext["e"]], ext["g"]
        if not 0 <= queue_id < queue_nums:
            queue_id = self._queue_for(request, topic)
        # The separator between the producer's properties and ours may be missing, because Java 4.9 omits the last one.
        properties = ext.get("i") or ""
        if SEND_NUMBER_MARK in properties:
            properties = without_number(properties)
        properties += self._cluster if not properties or properties[-1] == PROPERTY_END else PROPERTY_END + self._cluster
        reconsume_times = ext.get("j")
        message = IncomingMessage(
            topic,
            queue_id,
            request.body,
            properties,
            _NUMBERS[ext["h"]],
            _NUMBERS[ext["f"]] & ~HOST_BITS,
            int(born) if born.isascii() and born.isdigit() else long_of(born),
            host,
            long_of(reconsume_times) if reconsume_times and reconsume_times != "0" else 0,
        )
        is_retry = not queue_nums and topic.startswith(RETRY_PREFIX)
        if (len(properties) > _SHORT_PROPERTIES or len(message.body) > self._small_body) and not is_retry:
            self._check_copies(message.body, properties)
        if is_retry and redirect_retry(message, request, self.groups, self.orderly):
            self.table_log.require_topic(self.topics.for_group(message.topic, DLQ_QUEUES))
        if DELAY in properties or TRANSACTION_PREPARED in properties or TIMER_DELIVER_MS in properties:
            self._admit_special(message)  # checks again, because other properties may contain these words
        if number is not None:
            message.properties += number_property(number)
            self.numbered.putting[number[:3]] = len(messages)
        messages.append(message)
        return queue_id

    def _check_copies(self, body: bytes, properties: str) -> None:
        """Refuse a message that could be stored, but not as a retry or a dead letter, because its copies are larger."""
        size = len(properties.encode())
        size_max, taker = self.record_max
        room = size_max - _RECORD_EXTRA - COPY_BYTES
        if size > SENT_PROPERTIES_BYTES_MAX:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {size} bytes, {SENT_PROPERTIES_BYTES_MAX} are allowed, because a retry adds up to "
                f"{COPY_BYTES}; the message was not stored",
            )
        if len(body) + size > room:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"body and properties have {len(body) + size} bytes, and {taker} has room for {room}, because a retry "
                f"adds up to {COPY_BYTES}; the message was not stored",
            )

    def _queue_for(self, request: RemotingCommand, topic: str) -> int:
        queue_id = _NUMBERS[request.ext["e"]]
        config = self.topics.topics.get(topic)
        if topic in self._postponed:
            raise Postponed(trio.lowlevel.checkpoint)  # behind those that wait already
        if config is None or not self._takes_messages(config) or self.table_log.is_changing(topic):
            config = self._writable_topic(request, topic)
        if queue_id < 0:
            return self.randomness.randrange(max(min(config.write_queue_nums, config.read_queue_nums), 1))
        if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            # Not RocketMQ's SYSTEM_ERROR: clients treat this code as a refusal that stored nothing, fetch the route again and
            # try another queue, which succeeds if the number of queues was just reduced.
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"queue {queue_id} of topic {topic} does not exist: there are {config.write_queue_nums} to write and "
                f"{config.read_queue_nums} to read; the message was not stored",
            )
        return queue_id

    def _writable_topic(self, request: RemotingCommand, topic: str) -> TopicConfig:
        if topic in NOT_FOR_CLIENTS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is the broker's own; the message was not stored")
        refusal = self.store.writability.refusal
        if refusal is not None:  # before anything is created for the message
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{refusal}; the message was not stored")
        config: TopicConfig | None
        if topic.startswith(RETRY_PREFIX):
            group = self.groups.find(topic.removeprefix(RETRY_PREFIX))
            if group is None:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"group {topic.removeprefix(RETRY_PREFIX)} does not exist; the message was not stored",
                )
            config = self.topics.for_group(topic, group.retry_queue_nums)
        else:
            queue_nums = int_of(request.ext.get("d") or self.config.now.default_topic_queue_nums)
            config = self.topics.for_send(topic, request.ext.get("c") or "", queue_nums)
        if config is None:
            if (fault := topic_name_fault(topic)) is not None:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{fault}; the message was not stored")
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist and may not be created by sending; the message was not stored",
            )
        if not config.is_writable or not self.config.now.broker_permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} on broker {self.config.now.broker_name} is not writable; the message was not stored",
            )
        if not config.read_queue_nums:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"topic {topic} has no queue to read from; the message was not stored"
            )
        self.table_log.require_topic(config)
        return config

    def _put_batch(
        self, connection: ServerConnection, request: RemotingCommand, host: bytes, version: DataVersion | None
    ) -> None:
        """Put the items of a batch together and answer with all their ids."""
        ext = request.ext
        topic = ext["b"]
        queue_id = self._queue_for(request, topic)
        if topic.startswith(RETRY_PREFIX):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"a batch cannot be sent to the retry topic {topic}")
        try:
            items = decode_batch(request.body, BATCH_ITEMS_MAX)
        except CorruptBatch as error:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}; nothing of it was stored"
            ) from error
        outer = decode_properties(ext.get("i") or "")
        if not items or _NUMBERS[ext["f"]] & TRANSACTION_MASK or DELAY in outer:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch is neither empty, delayed nor transactional; nothing of it was stored"
            )
        flags, born = _NUMBERS[ext["f"]] & ~HOST_BITS, long_of(ext["g"])
        first = number_of_sender(ext[REQUEST_FIELD], ext) if REQUEST_FIELD in ext else None
        early = self.store.may_answer_early and outer.get(WAIT) == "false"
        found: list[StoredMessage | None] = [None] * len(items)
        if first is not None:
            found = [self.numbered.find(first.after(at)) for at in range(len(items))]
        messages: list[IncomingMessage] = []
        numbers: list[SendNumber] = []
        for at, (flag, body, properties) in enumerate(items):
            if found[at] is not None:
                continue
            text = join_properties(without_number(properties.decode("utf-8", "replace")), self._cluster)
            if len(text) > _SHORT_PROPERTIES or len(body) > self._small_body:
                self._check_copies(body, text)
            if first is not None:
                numbers.append(first.after(at))
                text += number_property(numbers[-1])
            messages.append(IncomingMessage(topic, queue_id, body, text, flag, flags, born, host))
        self.numbered.putting.update({number[:3]: at for at, number in enumerate(numbers)})
        batch = self.store.put(messages, together=True)
        self.numbered.end_put(batch)
        count_puts(self.stats, [topic] * len(messages), batch)
        if len(messages) < len(items):
            self._answer_repeated_batch(connection, request, found, batch, early=early)
            return
        push = self._push_to(connection, version)

        def answer(status: PutStatus) -> None:
            code = response_code(status)
            if request.is_oneway:
                return
            if not status.stored:
                push(encode_frame(request.response(code, remark=batch.remark or UNKNOWN_REMARK)))
                return
            ids = ",".join(map(self._answers.message_id, batch.physical_offsets))
            push(encode_frame(request.response(code, self._answers.fields(ids, queue_id, batch.queue_offsets[0]))))

        if batch.statuses[0] is _PUT_OK and self.store.waits and not early:
            self.store.when_stored(batch, answer)
        else:
            answer(batch.statuses[0])

    def _answer_if_repeated(self, connection: ServerConnection, request: RemotingCommand, number: SendNumber) -> bool:
        """Answer a send whose message an earlier request has stored, as that one was answered; returns whether it is one."""
        found = self.numbered.find(number)
        if found is None:
            return False
        early = found.properties.get(WAIT) == "false"
        self._answer_when_safe(connection, request, repeated_fields(found), found.physical_offset + found.size, early=early)
        return True

    def _answer_repeated_batch(
        self,
        connection: ServerConnection,
        request: RemotingCommand,
        found: list[StoredMessage | None],
        batch: PutBatch,
        *,
        early: bool,
    ) -> None:
        """Answer a batch of which an earlier request has stored all messages, or those before the place where a log was cut."""
        status = next((status for status in batch.statuses if status is not _PUT_OK), _PUT_OK)
        if status is not _PUT_OK:
            connection.answer(request, response_code(status), remark=batch.remark)
            return
        put = iter(zip(batch.physical_offsets, batch.queue_offsets, strict=True))
        ids: list[str] = []
        offsets: list[int] = []
        end = batch.end
        for message in found:
            if message is None:
                physical_offset, queue_offset = next(put)
                ids.append(self._answers.message_id(physical_offset))
                offsets.append(queue_offset)
            else:
                ids.append(message.message_id)
                offsets.append(message.queue_offset)
                end = max(end, message.physical_offset + message.size)
        first = found[0]
        fields = repeated_fields(first) if first is not None else {"queueId": request.ext["e"], "queueOffset": offsets[0]}
        fields |= {"msgId": ",".join(ids), OFFSETS_FIELD: ",".join(map(str, offsets))}
        self._answer_when_safe(connection, request, fields, end, early=early)

    def _answer_when_safe(
        self, connection: ServerConnection, request: RemotingCommand, fields: Mapping[str, object], end: int, *, early: bool
    ) -> None:
        """Answer with fields about stored messages when the log up to `end` is as safe as the mode promises."""
        push = self._push_to(connection, self.topics.version)

        def answer(status: PutStatus) -> None:
            if request.is_oneway:
                return
            known = {**self._answers.fields("", 0, 0), **fields} if status.stored else None
            push(encode_frame(request.response(response_code(status), known, remark=None if status.stored else UNKNOWN_REMARK)))

        if self.store.waits and not (early and self.store.may_answer_early):
            self.store.log.when_stored(end, answer)
        else:
            answer(_PUT_OK)

    def _admit_special(self, message: IncomingMessage) -> None:
        decoded = decode_properties(message.properties)
        if decoded.get(TRANSACTION_PREPARED) == "true":
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"broker {self.config.now.broker_name} does not take transactional messages; the message was not stored",
            )
        if DELAY in decoded:
            divert_delayed(message, self.store.dispatcher.tags_codes.level_max)
        elif not decoded.keys().isdisjoint((TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)):
            # An ordinary message would be delivered at once, and a delivery that is too early is worse than a refusal.
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "timerWheelEnable is false: timer messages are not taken, use a delay level; the message was not stored",
            )

    def _put(self, push: Push, messages: list[IncomingMessage], sent: list[_Sent]) -> None:
        store = self.store
        batch = store.put(messages)
        self.numbered.end_put(batch)
        count_puts(self.stats, [message.topic for message in messages], batch)
        if not store.waits or not batch.end:
            self._answer_all(push, sent, batch, _PUT_OK)
            return
        statuses, early = batch.statuses, store.may_answer_early
        later = [one for one in sent if _waits(messages[one[1]], statuses[one[1]], early=early)]
        if len(later) < len(sent):
            at_once = [one for one in sent if not _waits(messages[one[1]], statuses[one[1]], early=early)]
            self._answer_all(push, at_once, batch, _PUT_OK)
        if later:
            store.when_stored(batch, lambda status: self._answer_all(push, later, batch, status))

    def _answer_all(self, push: Push, sent: list[_Sent], batch: PutBatch, status: PutStatus) -> None:
        """Answer the requests whose messages were appended with `status`, and the others with their own status."""
        code, stored, frame = int(response_code(status)), status.stored, self._answers.frame
        statuses, physical_offsets, queue_offsets = batch.statuses, batch.physical_offsets, batch.queue_offsets
        answers: list[bytes] = []
        for request, at, queue_id in sent:
            if request.flag & ONEWAY_FLAG:
                continue
            if statuses[at] is not _PUT_OK:
                answers.append(encode_frame(request.response(response_code(statuses[at]), remark=batch.remark)))
            elif stored:
                answers.append(frame(request, code, physical_offsets[at], queue_id, queue_offsets[at]))
            else:
                answers.append(encode_frame(request.response(code, remark=UNKNOWN_REMARK)))
        if answers:
            push(b"".join(answers))


def _waits(message: IncomingMessage, status: PutStatus, *, early: bool) -> bool:
    """Whether the answer waits for more than the append; with `early`, a message with WAIT=false does not."""
    properties = message.properties
    no_wait = early and _NO_WAIT_MARK in properties and find_property(properties, WAIT) == "false"
    return status is _PUT_OK and not no_wait


def _check_body(topic: str, size: int, size_max: int) -> None:
    """Refuse a body larger than `maxMessageSize`, except that of a retry, which was accepted under the value of its time."""
    if not topic.startswith(RETRY_PREFIX):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"the body has {size} bytes, maxMessageSize is {size_max}; nothing was stored"
        )


def _bad_field(request: RemotingCommand, error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"send request {request.code} lacks the field {error}; the message was not stored"
    return f"send request {request.code}: {error}; the message was not stored"
