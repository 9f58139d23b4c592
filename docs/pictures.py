"""Draw the pictures of the manual: `python docs/pictures.py` writes `docs/pictures/*.svg`; with `--check` it only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from svg import Picture, written_or_checked

FOLDER = Path(__file__).with_name("pictures")


def parts() -> Picture:
    """The parts of a cluster, and who speaks to whom."""
    picture = Picture("Clients, name servers, a broker with its log, and the copies of that log", 920, 430)
    picture.box(330, 20, 260, 56, "name servers\nwho has which topic", "server")
    picture.box(20, 150, 150, 70, "producers\nPython, Java, Go, …", "client")
    picture.box(20, 320, 150, 70, "consumers\nPython, Java, Go, …", "client")

    picture.box(290, 130, 340, 280, "", "server")
    picture.text(460, 152, "broker: master or leader")
    picture.box(310, 165, 300, 62)
    picture.text(460, 183, "commit log", kind="small")
    for number in range(9):
        picture.box(322 + number * 31, 191, 28, 26, "", "strong" if number == 8 else "weak")
    picture.box(310, 268, 300, 62)
    picture.text(460, 286, "consume queues, derived", kind="small")
    for number in range(15):
        picture.box(322 + number * 19, 294, 16, 26, "", "weak")
    picture.box(310, 350, 145, 44, "key index, derived")
    picture.box(465, 350, 145, 44, "topics, positions")

    picture.box(740, 130, 160, 110, "slave, or\nfollowers:\nthe same log", "copy")
    picture.box(740, 300, 160, 90, "the same queues,\nderived again", "copy")

    picture.arrow((95, 150), (95, 48), (330, 48))
    picture.text(210, 40, "where is this topic?", kind="small")
    picture.arrow((460, 130), (460, 76))
    picture.text(470, 108, "registers", anchor="start", kind="small")
    picture.arrow((820, 130), (820, 48), (590, 48))
    picture.text(705, 40, "registers", kind="small")
    picture.arrow((170, 185), (310, 185))
    picture.text(230, 177, "send", kind="small")
    picture.arrow((310, 208), (170, 208))
    picture.text(230, 224, "acknowledged", kind="small")
    picture.arrow((460, 227), (460, 268))
    picture.text(470, 252, "derive", anchor="start", kind="small")
    picture.arrow((290, 345), (170, 345))
    picture.text(230, 337, "messages", kind="small")
    picture.arrow((170, 370), (290, 370))
    picture.text(230, 388, "pull, commit", kind="small")
    picture.arrow((630, 185), (740, 185), both=True)
    picture.text(685, 177, "log bytes", kind="small")
    picture.text(685, 203, "reports", kind="small")
    picture.arrow((820, 240), (820, 300))
    picture.text(830, 274, "derive", anchor="start", kind="small")
    return picture


WAYS = (
    ("ASYNC_MASTER, ASYNC_FLUSH", ("written to the log", "ANSWER", "synced every\n500 ms", "copied to slaves")),
    ("ASYNC_MASTER, SYNC_FLUSH", ("written to the log", "synced", "ANSWER", "copied to slaves")),
    ("SYNC_MASTER, ASYNC_FLUSH", ("written to the log", "a slave has\nwritten it", "ANSWER", "synced every\n500 ms")),
    ("SYNC_MASTER, SYNC_FLUSH", ("written to the log", "synced, and a\nslave has it", "ANSWER")),
    (
        "DLedger group",
        ("written by the leader,\nsent out", "synced by a\nmajority", "ANSWER", "derived by all nodes"),
    ),
)


def ways() -> Picture:
    """What happens to a message in each mode, and when its producer is answered."""
    row, step, left = 74, 172, 210
    picture = Picture("What has happened to a message when its producer is answered, in each mode", 920, 40 + row * len(WAYS))
    picture.text(left + 10, 26, "what happens to a message, in this order", anchor="start", kind="small")
    for number, (mode, steps) in enumerate(WAYS):
        y = 40 + number * row
        picture.text(20, y + 30, mode.partition(", ")[0], anchor="start")
        picture.text(20, y + 48, mode.partition(", ")[2], anchor="start", kind="small")
        for at, text in enumerate(steps):
            x = left + at * step
            picture.box(
                x, y + 8, step - 20, 48, text.lower() if text == "ANSWER" else text, "strong" if text == "ANSWER" else "plain"
            )
            if at:
                picture.arrow((x - 20, y + 32), (x, y + 32))
    return picture


def main() -> None:
    """Write or check the pictures."""
    files = {FOLDER / "parts.svg": parts().svg(), FOLDER / "ways.svg": ways().svg()}
    different = written_or_checked(files, check="--check" in sys.argv[1:])
    if different:
        sys.exit(f"{', '.join(map(str, different))}: not as drawn now; run python {__file__}")


if __name__ == "__main__":
    main()
