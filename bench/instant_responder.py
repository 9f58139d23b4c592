"""Apache's benchmark producer without a limit on sends, against a responder of almost no cost: the limits of the client itself.

The responder is name server and broker in one. It answers with one route, answers everything else with SUCCESS, writes all
answers of one receive at once, and stores nothing, so hardly any broker is faster. A failure here is the client's.
"""

import argparse
import json
import shutil
import socket
import struct
import threading
import time

import attrs
from apache_client import failures, start_producer
from processes import end_in_order
from servers import QUEUES, Cluster

_GET_ROUTEINFO_BY_TOPIC = 105
_SEND_MESSAGE_V2 = 310
_RESPONSE, _ONEWAY = 1, 2
_RECEIVE_BYTES = 1 << 18
# The start of a frame with RocketMQ's binary header: length, header word; code, language, version, opaque, flag, remark length,
# fields length.
_HEAD = struct.Struct(">IIhBhiiII")
_LENGTH = struct.Struct(">I")
_BINARY = 1 << 24
_LANGUAGE = 12


def _fields(pairs: dict[str, str]) -> bytes:
    return b"".join(
        struct.pack(">H", len(name)) + name.encode() + struct.pack(">I", len(value)) + value.encode()
        for name, value in pairs.items()
    )


_SENT = _fields({"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"})


@attrs.define
class Responder:
    """Listens on one port until the process ends; `sends` counts the sends it has answered."""

    port: int
    sends: int = 0

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        pending = b""
        try:
            while received := connection.recv(_RECEIVE_BYTES):
                pending += received
                answers, start = self._answer_all(pending)
                pending = pending[start:]
                connection.sendall(answers)
        except OSError:
            return

    def _answer_all(self, frames: bytes) -> tuple[bytes, int]:
        """Answer the complete frames; return the answers and the offset of the incomplete frame."""
        answers: list[bytes] = []
        start, end, head = 0, len(frames), _HEAD
        while end - start >= head.size:
            length, _, code, _, version, opaque, flag, _, _ = head.unpack_from(frames, start)
            if start + _LENGTH.size + length > end:
                break
            start += _LENGTH.size + length
            if flag & _ONEWAY:
                continue
            fields, body = b"", b""
            if code == _SEND_MESSAGE_V2:
                self.sends += 1
                fields = _SENT
            elif code == _GET_ROUTEINFO_BY_TOPIC:
                body = self._route()
            header_bytes = head.size - 2 * _LENGTH.size + len(fields)
            size = _LENGTH.size + header_bytes + len(body)
            answers.append(
                head.pack(size, _BINARY | header_bytes, 0, _LANGUAGE, version, opaque, _RESPONSE, 0, len(fields))
                + fields
                + body
            )
        return b"".join(answers), start

    def _route(self) -> bytes:
        queues = {"brokerName": "instant", "perm": 6, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "topicSysFlag": 0}
        addresses = {"brokerAddrs": {"0": f"127.0.0.1:{self.port}"}, "brokerName": "instant", "cluster": "instant"}
        return json.dumps({"brokerDatas": [addresses], "filterServerTable": {}, "queueDatas": [queues]}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=40, help="from the client's start (default 40)")
    parser.add_argument("--threads", type=int, default=64, help="sending threads (default 64)")
    parser.add_argument("--back-pressure", action="store_true", help="switch the client's own back-pressure on")
    found = parser.parse_args()
    end_in_order()
    cluster = Cluster.prepare("ours")  # only for its folder and its ports; its servers are not started
    responder = Responder(cluster.namesrv_port)
    responder.start()
    producer = start_producer(cluster, threads=found.threads, asynchronous=True, back_pressure=found.back_pressure)
    rates: list[int] = []
    try:
        for _ in range(found.seconds):
            before = responder.sends
            time.sleep(1)
            rates.append(responder.sends - before)
        cores = producer.cpu_seconds() / found.seconds
        failed = failures(producer)
    finally:
        producer.kill()
        shutil.rmtree(cluster.folder, ignore_errors=True)
    print("answered, thousands a second: " + " ".join(f"{rate / 1000:.1f}" for rate in rates))
    print(f"failed sends: {failed:,}; the client kept {cores:.2f} cores busy")


if __name__ == "__main__":
    main()
