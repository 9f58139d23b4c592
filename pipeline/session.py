"""Starts a Spark session that suits our source.

It finds Java, prints nothing, binds to loopback in local mode, and has settings that make small batches fast.

Everything that the JVM and the workers print goes to one log file, so that a terminal shows only the output of the job.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ..message.numbers import is_digits
from .java import find_java, java_home_for_spark
from .python import python_for_workers
from .registration import check_installed, register

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*,3]"
"""Uses all cores, and gives each task three attempts because a broker may fail over during one."""

_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.speculation": "false",
}
"""Settings that differ from Spark's defaults. The checkpoint file manager suits local disks and HDFS, not object stores."""
SHORT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""JVM options for jobs of a few seconds, with which the JVM starts in half the processor time."""
LONG_JAVA = "-XX:+UseParallelGC"
"""JVM options for longer jobs. The default collector is not used, because it damages data in Java 25.0.0 to 25.0.2."""


def session(
    master: str | None = None,
    *,
    name: str = "ledgermq",
    conf: Mapping[str, str] | None = None,
    short: bool = True,
    memory: str = "1g",
    log_path: str | None = None,
) -> SparkSession:
    """Start a Spark session, or return the one that this process has, whichever thread started it.

    Args:
        master: a Spark master; all cores of this machine if None.
        name: the name of the application in Spark.
        conf: settings of Spark; they override ours.
        short: whether the job takes seconds rather than minutes.
        memory: the heap of the driver's JVM, which in local mode also runs the tasks.
        log_path: the file for the output of Spark; one in the temporary directory if None.

    Raises:
        NoSpark: the extra `spark` is not installed.
        NoJava: no suitable Java was found.
    """
    check_installed()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - the import takes half a second, which only sessions need
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    active = SparkSession.getActiveSession()
    kind: Any = SparkContext
    if active is None and kind._active_spark_context is not None:  # noqa: SLF001 - which no public name tells
        active = SparkSession.builder.getOrCreate()  # each thread has an active session of its own
    if active is not None:
        register(active)
        return active
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started a JVM, whose settings are the user's
        builder = SparkSession.builder.appName(name)
        for key, value in {**_SQL_SETTINGS, **(conf or {})}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    settings = settings_of(master or LOCAL_MASTER, name, conf or {}, short=short, memory=memory)
    path = log_path or os.path.join(tempfile.gettempdir(), f"ledgermq-spark-{os.getpid()}.log")
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with open(path, "ab", buffering=0) as log, _environment(settings["spark.master"]):
        with _deferred_interrupts() as interrupts:
            gateway = launch_gateway(spark_conf, popen_kwargs={"stdout": log, "stderr": log})
        if interrupts:
            jvm = cast("subprocess.Popen[bytes]", gateway.proc)  # an attribute that PySpark adds to py4j's class
            assert jvm.stdin is not None
            jvm.stdin.close()  # the JVM ends when it reads the end of its input
            raise KeyboardInterrupt
        context = SparkContext(conf=spark_conf, gateway=gateway)
    spark = SparkSession.builder.getOrCreate()
    context.setLogLevel("WARN")
    return spark


_SQL_SETTINGS = {key: value for key, value in _SETTINGS.items() if key.startswith("spark.sql.")}


def settings_of(master: str, name: str, conf: Mapping[str, str], *, short: bool, memory: str) -> dict[str, str]:
    """Return all settings of a session; those in `conf` override the others."""
    log4j = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log4j2.properties")
    settings = {
        "spark.master": master,
        "spark.app.name": name,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"{SHORT_JAVA if short else LONG_JAVA} -Dlog4j2.configurationFile=file:{log4j}",
        **_SETTINGS,
    }
    if not _on_this_machine(master):  # executors have time and memory of their own, and checkpoints may be in an object store
        settings["spark.executor.extraJavaOptions"] = LONG_JAVA
        del settings["spark.sql.streaming.checkpointFileManagerClass"]
    else:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    return {**settings, **conf}


def _on_this_machine(master: str) -> bool:
    return master.startswith("local") or "//127.0.0.1:" in master or "//localhost:" in master


def _cores(master: str) -> int:
    text = master.removeprefix("local").strip("[]").partition(",")[0]
    return int(text) if is_digits(text) else os.cpu_count() or 1


@contextmanager
def _deferred_interrupts() -> Generator[list[int]]:
    """Collect the signals of Ctrl-C instead of raising `KeyboardInterrupt`.

    Until the JVM has said how it can be reached, PySpark could not end it, and it would wait for this process for ever.
    """
    found: list[int] = []
    is_ours = threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, lambda number, _: found.append(number)) if is_ours else None
    try:
        yield found
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(master: str) -> Generator[None]:
    """Set the environment variables that the JVM and its workers inherit while they are started."""
    wanted = {
        "JAVA_HOME": java_home_for_spark(find_java()),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": python_for_workers(),  # with which the JVM starts what finds and plans a source in Python
    }
    if _on_this_machine(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
        wanted["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or python_for_workers()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
