"""Does with librocketmq, the C++ client, what standard input says, one command a line, and reports JSON lines; judges nothing.

Runs as a process of its own, for a native client may crash. Names and numbers: the C API of rocketmq-client-cpp.
"""

import ctypes
import hashlib
import json
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_int, c_longlong, c_void_p
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote

CONSUME_SUCCESS, RECONSUME_LATER = 0, 1
PULL_FOUND = 0
SEND_STATUS = {0: "SEND_OK", 1: "FLUSH_DISK_TIMEOUT", 2: "FLUSH_SLAVE_TIMEOUT", 3: "SLAVE_NOT_AVAILABLE"}
MODELS = {"BROADCASTING": 0, "CLUSTERING": 1}


class SendResult(ctypes.Structure):
    _fields_: ClassVar = [("status", c_int), ("msg_id", c_char * 256), ("offset", c_longlong)]


class Queue(ctypes.Structure):
    _fields_: ClassVar = [("topic", c_char * 512), ("broker_name", c_char * 256), ("queue_id", c_int)]


class PullResult(ctypes.Structure):
    _fields_: ClassVar = [
        ("status", c_int),
        ("next_begin_offset", c_longlong),
        ("min_offset", c_longlong),
        ("max_offset", c_longlong),
        ("messages", POINTER(c_void_p)),
        ("size", c_int),
        ("private", c_void_p),
    ]


class MQException(ctypes.Structure):
    _fields_: ClassVar = [
        ("error", c_int),
        ("line", c_int),
        ("file", c_char * 512),
        ("message", c_char * 512),
        ("type", c_char * 512),
    ]


SELECTOR = ctypes.CFUNCTYPE(c_int, c_int, c_void_p, c_void_p)
SUCCEEDED = ctypes.CFUNCTYPE(None, SendResult)
FAILED = ctypes.CFUNCTYPE(None, MQException)
LISTENER = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)

RESULTS: dict[str, Any] = {
    "CreateMessage": c_void_p,
    "CreateProducer": c_void_p,
    "CreatePushConsumer": c_void_p,
    "CreatePullConsumer": c_void_p,
    "Pull": PullResult,
    "GetMessageQueueOffset": c_longlong,
    "GetMessageCommitLogOffset": c_longlong,
    "GetMessageBornTimestamp": c_longlong,
    "GetMessageStoreTimestamp": c_longlong,
    **dict.fromkeys(("GetMessageTopic", "GetMessageTags", "GetMessageKeys", "GetMessageProperty", "GetMessageId"), c_char_p),
    "GetMessageBody": c_char_p,
    "GetLatestErrorMessage": c_char_p,
}


class Failure(Exception):
    """A call of the client answered something else than OK."""


class Command:
    def __init__(self, line: str) -> None:
        number, self.name, *words = line.split(" ")
        self.call = int(number)
        self.arguments = {key: unquote(value) for key, _, value in (word.partition("=") for word in words)}

    def text(self, key: str, otherwise: str = "") -> str:
        return self.arguments.get(key, otherwise)

    def number(self, key: str, otherwise: int = 0) -> int:
        return int(self.arguments.get(key, otherwise))


class Client:
    """The library and everything that must outlive the call that made it: callbacks, producers, consumers."""

    def __init__(self, namesrv: str, library: str) -> None:
        self.namesrv = namesrv.encode()
        self.dll = ctypes.CDLL(library)
        for name, result in RESULTS.items():
            getattr(self.dll, name).restype = result
        self.producers: dict[str, c_void_p] = {}
        self.consumers: dict[int, tuple[c_void_p, Any]] = {}
        self.output = threading.Lock()
        self.failed = False

    def report(self, command: Command, event: str, **values: Any) -> None:
        with self.output:
            sys.stdout.write(json.dumps({"call": command.call, "event": event, **values}) + "\n")
            sys.stdout.flush()

    def perform(self, command: Command) -> None:
        commands: dict[str, Callable[[Command], None]] = {
            "send": self.send,
            "consume": self.consume,
            "stop": lambda command: self.stop(command.number("consumer")),
            "read_all": self.read_all,
        }
        try:
            commands[command.name](command)
        except Exception as error:  # noqa: BLE001 whatever it is, it is the answer
            self.failed = True
            self.report(command, "done", ok=False, error=repr(error))
        else:
            self.report(command, "done", ok=True)

    def check(self, name: str, *arguments: Any) -> None:
        status = getattr(self.dll, name)(*arguments)
        if status != 0:
            raise Failure(name, status, self.dll.GetLatestErrorMessage())

    # ---- producing

    def producer(self, group: str) -> c_void_p:
        if group not in self.producers:
            made = c_void_p(self.dll.CreateProducer(group.encode()))
            self.check("SetProducerNameServerAddress", made, self.namesrv)
            self.check("SetProducerInstanceName", made, group.encode())
            self.check("SetProducerSendMsgTimeout", made, 10_000)
            self.check("StartProducer", made)
            self.producers[group] = made
        return self.producers[group]

    def send(self, command: Command) -> None:
        producer = self.producer(command.text("group", "cpp_producer"))
        mode, count = command.text("mode", "sync"), command.number("count", 1)
        if mode == "async":
            self.send_async(command, producer, count)
        else:
            for index in range(count):
                self.send_one(command, producer, mode, index)

    def send_one(self, command: Command, producer: c_void_p, mode: str, index: int) -> None:
        message, result = self.message(command, index), SendResult()
        try:
            if mode == "oneway":
                self.check("SendMessageOneway", producer, message)
                self.sent(command, index, None)
            elif mode == "ordered":
                # The library refuses a null key, so shards count from one here.
                key = c_void_p(index % command.number("shards", 1) + 1)
                self.check("SendMessageOrderly", producer, message, SELECTOR(select), key, 1, ctypes.byref(result))
                self.sent(command, index, result)
            else:
                self.check("SendMessageSync", producer, message, ctypes.byref(result))
                self.sent(command, index, result)
        finally:
            self.dll.DestroyMessage(message)

    def send_async(self, command: Command, producer: c_void_p, count: int) -> None:
        answered = threading.Semaphore(0)
        errors: list[bytes] = []
        keep: list[Any] = []
        for index in range(count):

            def succeeded(result: SendResult, index: int = index) -> None:
                self.sent(command, index, result)
                answered.release()

            def failed(error: MQException) -> None:
                errors.append(error.message)
                answered.release()

            keep += [SUCCEEDED(succeeded), FAILED(failed)]
            self.check("SendMessageAsync", producer, self.message(command, index), keep[-2], keep[-1])
        for _ in range(count):
            if not answered.acquire(timeout=30):
                raise Failure("a callback did not come")
        if errors:
            raise Failure(len(errors), errors[0])

    def message(self, command: Command, index: int) -> c_void_p:
        made = c_void_p(self.dll.CreateMessage(command.text("topic").encode()))
        body = payload(command, index)
        self.check("SetByteMessageBody", made, body, len(body))
        tags = command.text("tags").split(",")
        if tags[index % len(tags)]:
            self.check("SetMessageTags", made, tags[index % len(tags)].encode())
        if command.text("keys"):
            self.check("SetMessageKeys", made, fill(command, command.text("keys"), index).encode())
        for key, value in parse_qsl(command.text("properties")):
            self.check("SetMessageProperty", made, key.encode(), fill(command, value, index).encode())
        if command.number("delay"):
            self.check("SetDelayTimeLevel", made, command.number("delay"))
        return made

    def sent(self, command: Command, index: int, result: SendResult | None) -> None:
        self.report(
            command,
            "sent",
            index=index,
            status="ONEWAY" if result is None else SEND_STATUS[result.status],
            msg_id="" if result is None else result.msg_id.decode(),
            offset_msg_id="",
            queue_id=-1,
            queue_offset=-1 if result is None else result.offset,
            body=shown(payload(command, index)),
        )

    # ---- consuming

    def consume(self, command: Command) -> None:
        made = c_void_p(self.dll.CreatePushConsumer(command.text("group").encode()))
        self.check("SetPushConsumerNameServerAddress", made, self.namesrv)
        self.check("SetPushConsumerInstanceName", made, f"consumer-{command.call}".encode())
        self.check("SetPushConsumerMessageModel", made, MODELS[command.text("model", "CLUSTERING")])
        self.check("SetPushConsumerThreadCount", made, 4)
        self.check("Subscribe", made, command.text("topic").encode(), command.text("expression", "*").encode())
        failures = command.number("failures")

        def listen(_consumer: int, message: int) -> int:
            self.received(command, command.text("name", command.text("kind")), c_void_p(message))
            times = self.dll.GetMessageReconsumeTimes(c_void_p(message))
            return RECONSUME_LATER if times < failures else CONSUME_SUCCESS

        listener = LISTENER(listen)
        register = "RegisterMessageCallback" + ("Orderly" if command.text("kind") == "orderly" else "")
        self.check(register, made, listener)
        self.check("StartPushConsumer", made)
        self.consumers[command.call] = made, listener

    def stop(self, call: int) -> None:
        if call in self.consumers:
            # The listener stays referenced until the library can no longer call it.
            consumer, _listener = self.consumers[call]
            self.check("ShutdownPushConsumer", consumer)
            del self.consumers[call]

    def received(self, command: Command, consumer: str, message: c_void_p) -> None:
        def text(name: str, *more: bytes) -> str:
            return (getattr(self.dll, name)(message, *more) or b"").decode()

        names = [*(key for key, _ in parse_qsl(command.text("properties"))), "UNIQ_KEY", "RETRY_TOPIC"]
        self.report(
            command,
            "received",
            consumer=consumer,
            topic=text("GetMessageTopic"),
            queue_id=self.dll.GetMessageQueueId(message),
            queue_offset=self.dll.GetMessageQueueOffset(message),
            # The C API gives the body without its length, so only text can be shown.
            body=shown(self.dll.GetMessageBody(message) or b""),
            tags=text("GetMessageTags"),
            keys=text("GetMessageKeys"),
            properties={name: text("GetMessageProperty", name.encode()) for name in names},
            reconsume_times=self.dll.GetMessageReconsumeTimes(message),
            msg_id=text("GetMessageId"),
            offset_msg_id="",
            physical_offset=self.dll.GetMessageCommitLogOffset(message),
            born_timestamp=self.dll.GetMessageBornTimestamp(message),
            store_timestamp=self.dll.GetMessageStoreTimestamp(message),
            store_size=self.dll.GetMessageStoreSize(message),
        )

    def read_all(self, command: Command) -> None:
        made = c_void_p(self.dll.CreatePullConsumer(b"cpp_reader"))
        self.check("SetPullConsumerNameServerAddress", made, self.namesrv)
        self.check("StartPullConsumer", made)
        queues, size = POINTER(Queue)(), c_int()
        self.check(
            "FetchSubscriptionMessageQueues",
            made,
            command.text("topic").encode(),
            ctypes.byref(queues),
            ctypes.byref(size),
        )
        for queue in queues[: size.value]:
            self.read_queue(command, made, queue)
        self.dll.ReleaseSubscriptionMessageQueue(queues)
        self.check("ShutdownPullConsumer", made)

    def read_queue(self, command: Command, consumer: c_void_p, queue: Queue) -> None:
        offset, end = 0, 1
        while offset < end:
            result = self.dll.Pull(consumer, ctypes.byref(queue), b"*", c_longlong(offset), 32)
            end = result.max_offset
            for at in range(result.size):
                self.received(command, "read_all", c_void_p(result.messages[at]))
            found, beyond = result.status == PULL_FOUND, result.next_begin_offset
            self.dll.ReleasePullResult(result)
            if not found:
                return
            offset = beyond


def select(size: int, _message: int, key: int) -> int:
    """A queue for the key of a message."""
    return key % size


def fill(command: Command, template: str, index: int) -> str:
    return template.replace("{i}", str(index)).replace("{s}", str(index % command.number("shards", 1)))


def payload(command: Command, index: int) -> bytes:
    text = fill(command, command.text("body", "message-{i}"), index).encode()
    size = command.number("size")
    return (text * (size // len(text) + 1))[:size] if size else text


def shown(body: bytes) -> str:
    if len(body) <= 512:
        try:
            return body.decode()
        except UnicodeDecodeError:
            pass
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def main() -> int:
    client = Client(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        threading.Thread(target=client.perform, args=(Command(line.rstrip("\n")),)).start()
    for call in list(client.consumers):
        client.stop(call)
    for producer in client.producers.values():
        client.dll.ShutdownProducer(producer)
    return int(client.failed)


if __name__ == "__main__":
    sys.exit(main())
