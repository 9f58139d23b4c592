"""The second half of `make demo`: a Spark job over the topic that the first half has filled.

It reads the store's files without a broker, prints a small table and a plot, and writes a picture as PNG, the topic as Parquet.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from ledgermq.pipeline.jobs.archive import archive
from ledgermq.pipeline.jobs.picture import picture
from ledgermq.pipeline.session import session

WIDTH = 50


def say(who: str, colour: str, text: str) -> None:
    click.echo(f"{click.style(f'{who:>11}', fg=colour, bold=True)}  {text}", color=True)


def main(store: str, output: Path) -> None:
    started = time.perf_counter()
    say("spark", "blue", "starts ...")
    with session("local[2,3]", name="demo", memory="512m") as spark:
        say("spark", "blue", f"is ready after {time.perf_counter() - started:.0f} s; reads {store} without a broker")
        source = {"storePath": store, "subscribe": "orders"}
        orders = spark.read.format("ledgermq").options(**source, columns="tags,body,bornTimestamp,storeTimestamp").load()
        orders.createOrReplaceTempView("orders")
        rows = spark.sql(
            "select tags as tag, count(*) as orders, "
            "sum(cast(get_json_object(cast(body as string), '$.amount') as int)) as amount "
            "from orders group by tags order by tags"
        ).collect()
        say("table", "yellow", f"{'TAG':<8} {'ORDERS':>8} {'AMOUNT':>10}")
        for row in rows:
            say("", "yellow", f"{row.tag:<8} {row.orders:>8} {row.amount or 0:>10}")
        latencies = spark.sql(
            "select unix_millis(storeTimestamp) - unix_millis(bornTimestamp) as ms, count(*) as orders "
            "from orders group by 1 order by 1 limit 15"
        ).collect()
        plot_as_text(latencies)
        picture(spark, source).save(f"{output}/orders.png")
        say("plot", "magenta", f"rates, latencies, sizes, queues and keys in one picture: {output}/orders.png")
        done = archive(spark, source, str(output / "orders"))
        kept = spark.read.parquet(str(output / "orders")).count()
        say("archive", "cyan", f"{done.rows} new messages in {done.files} Parquet files in {output}/orders, {kept} in all")
    say("demo", "green", f"the job on Spark took {time.perf_counter() - started:.0f} s; docs/pipeline.md has more")


def plot_as_text(latencies: list[Any]) -> None:
    """Print a histogram of the milliseconds that orders took from the producer to the log."""
    most = max(row.orders for row in latencies)
    say("plot", "magenta", "milliseconds from the producer to the log")
    for row in latencies:
        say("", "magenta", f"{row.ms:>4} ms {'#' * max(1, row.orders * WIDTH // most)} {row.orders}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
