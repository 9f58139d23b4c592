"""The compiled path for plain sends, against the Python path: whatever it takes, both must read and answer alike.

As a command it builds the module with the address sanitizer and gives it damaged sends for some time: a read or write outside a
buffer ends the process with a report.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ledgermq import native
from ledgermq.broker.requests.send_answers import SendAnswers
from ledgermq.message.checksum import crc32
from ledgermq.message.layout import derived_parts, encode_host, encode_records, topic_field
from ledgermq.message.message import IncomingMessage
from ledgermq.message.properties import PROPERTY_END, encode_properties
from ledgermq.remoting.command import ONEWAY_FLAG, RemotingCommand, Wire, decode_command, encode_frame
from ledgermq.remoting.frame import FrameReader
from ledgermq.store.derived.dispatch import TagsCodes, derivable_of

NOW = 1_700_000_000_123
_ADDITION = "CLUSTER\1c\2"
_BORN_HOSTS = (encode_host("10.0.0.9", 40_000), encode_host("::1", 40_000))
_STORE_HOST = encode_host("10.0.0.1", 10_911)
_ANSWERS = SendAnswers("100% of %d", trace_on=True, message_id_start="0A00000100002A9F")


def compare(data: bytes, scan: native.ScanSends | None = native.scan_sends) -> None:
    """Read bytes on both paths, and encode what the compiled one takes of them."""
    run = scan(data) if scan is not None else None
    if run is None:
        return
    requests = [decode_command(*frame) for frame in FrameReader().cut(data[: run.end])]
    born_host = _BORN_HOSTS[len(data) % 2]
    fields = [topic_field(topic.encode()) for topic, _ in run.queues]
    records = run.encode(fields, list(range(len(fields))), NOW, born_host, _STORE_HOST, _ADDITION.encode(), crc32)
    offsets = [at << 30 for at in range(len(requests))]
    next_offsets = {queue: at for at, queue in enumerate(run.queues)}
    messages: list[IncomingMessage] = []
    queue_offsets: list[int] = []
    for request in requests:
        ext = request.ext
        properties = ext.get("i") or ""
        properties += _ADDITION if not properties or properties[-1] == PROPERTY_END else PROPERTY_END + _ADDITION
        topic, queue_id = ext["b"], int(ext["e"])
        messages.append(
            IncomingMessage(
                topic, queue_id, request.body, properties, int(ext["h"]), int(ext["f"]), int(ext["g"]), born_host, 0
            )
        )
        queue_offsets.append(next_offsets[topic, queue_id])
        next_offsets[topic, queue_id] += 1
    topics = [topic_field(message.topic.encode()) for message in messages]

    assert records == encode_records(messages, topics, queue_offsets, NOW, _STORE_HOST)
    tags_codes = TagsCodes(())
    for record, message, offset, found in zip(records, messages, offsets, run.derivables(offsets, NOW), strict=True):
        parts = derived_parts(record, 0, len(record))
        assert parts is not None
        assert found == derivable_of((*parts[:3], offset, message.sys_flag, *parts[5:]), tags_codes)
    answers = [
        _ANSWERS.frame(request, 0, offset, message.queue_id, queue_offset)
        for request, message, offset, queue_offset in zip(requests, messages, offsets, queue_offsets, strict=True)
        if not request.flag & ONEWAY_FLAG
    ]
    assert run.answers(offsets, *_ANSWERS.parts(0)) == b"".join(answers)
    assert len(run.unanswered) == len(answers)


def seeds() -> list[bytes]:
    """Receives of plain sends in both encodings, and mixed."""
    properties = {"UNIQ_KEY": "7F0000010000" + "0" * 20, "TAGS": "paid", "KEYS": "k1 k2", "WAIT": "true"}
    ext = {
        "a": "pg",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": str(NOW),
        "h": "0",
        "i": "",
        "j": "0",
        "m": "false",
    }
    frames = [
        encode_frame(
            RemotingCommand(310, {**ext, "e": str(at), "i": encode_properties(properties)}, b"body", at, wire=Wire(at % 2))
        )
        for at in range(4)
    ]
    return [*frames, b"".join(frames), encode_frame(RemotingCommand(310, ext, b"", 7, ONEWAY_FLAG, language="JAVA"))]


# ---------------------------------------------------------------------------------------------- under the sanitizer


def _build(directory: str) -> Path:
    source, target = Path(directory, "_native.c"), Path(directory, "_native.so")
    pyx = Path(native.__file__).with_name("_native.pyx")
    subprocess.run([sys.executable, "-m", "cython", "-3", "--module-name", "_native", str(pyx), "-o", str(source)], check=True)  # noqa: S603
    include = sysconfig.get_paths()["include"]
    flags = ("-O1", "-g", "-fwrapv", "-fno-omit-frame-pointer", "-fsanitize=address", "-shared", "-fPIC", f"-I{include}")
    subprocess.run(["gcc", *flags, str(source), "-o", str(target)], check=True)  # noqa: S603, S607
    return target


def _damaged(rng: random.Random, kept: list[bytes]) -> bytes:
    data = bytearray(rng.choice(kept))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes((rng.choice((0, 1, 2, 34, 92, 127, 128, 255, rng.randrange(256))),))
            case 1:
                del data[at : at + rng.randrange(9)]
            case 2:
                data[at:at] = rng.choice(kept)[: rng.randrange(400)]
            case _:
                data[at : at + 4] = rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(data), rng.randrange(1 << 16))).to_bytes(
                    4, "big"
                )
    return bytes(data)


def _run_sanitized(module: str, seconds: float, seed: int) -> None:
    spec = spec_from_file_location("_native", module)
    assert spec is not None
    assert spec.loader is not None
    compiled = module_from_spec(spec)
    spec.loader.exec_module(compiled)
    rng, kept, count, runs = random.Random(seed), seeds(), 0, 0  # noqa: S311 - never secrets
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        data = _damaged(rng, kept)
        compare(data, compiled.scan_sends)
        count += 1
        if compiled.scan_sends(data) is not None:
            runs += 1
            if len(kept) < 2000 and rng.random() < 0.05:
                kept.append(data)
    print(f"{count} inputs, {runs} with plain sends, seed {seed}: nothing outside a buffer, and nothing unlike Python")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (default 0)")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module is not None:
        _run_sanitized(options.module, options.seconds, options.seed)
        return
    with tempfile.TemporaryDirectory() as directory:
        library = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)  # noqa: S607
        environment = {
            **os.environ,
            "LD_PRELOAD": library.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        }
        arguments = ["--module", str(_build(directory)), "--seconds", str(options.seconds), "--seed", str(options.seed)]
        again = [sys.executable, "-m", "harness.fuzz.sends", *arguments]
        sys.exit(subprocess.run(again, check=False, env=environment).returncode)  # noqa: S603


if __name__ == "__main__":
    main()
