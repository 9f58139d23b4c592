"""The settings of a controller, and how its node of the group is set up."""

from __future__ import annotations

import pytest

from ledgermq.ha.controller.config import ControllerConfig, read_controller_conf
from ledgermq.ha.controller.errors import BadControllerConfig
from ledgermq.ha.errors import WrongHaSetting
from ledgermq.testing.logs import capture_logs

TEXT = """
controllerDLegerGroup = g1
controllerDLegerPeers = n0-10.0.0.1:9877;n1-10.0.0.2:9877
controllerDLegerSelfId = n1
controllerStorePath = /data/controller
enableElectUncleanMaster = true
listenPort = 9878
bindAddress = 10.0.0.2
haSecret = s3cret
"""


def test_the_keys_of_rocketmq_are_read() -> None:
    config = read_controller_conf(TEXT)
    settings = config.replica_settings(9878)

    assert (config.enable_elect_unclean_master, config.scan_not_active_broker_interval) == (True, 5000)
    assert (settings.group, settings.self_id, settings.serves) == ("g1", "n1", "10.0.0.2:9878")
    assert (settings.listen_host, settings.port, settings.secret) == ("10.0.0.2", 9877, b"s3cret")
    assert settings.files.directory == "/data/controller/dledger-n1"


def test_what_is_written_is_read_again_without_the_secret() -> None:
    config = read_controller_conf(TEXT)

    assert "s3cret" not in config.to_properties() + repr(config)
    assert read_controller_conf(config.to_properties()) == config.with_entries({"haSecret": ""})


def test_unknown_keys_are_named_and_misspelt_ones_refused() -> None:
    with capture_logs() as logs:
        assert read_controller_conf("mappedFileSize=1").others == {"mappedFileSize": "1"}
    assert [line["event"] for line in logs] == ["unknown_config_keys_ignored"]
    with pytest.raises(BadControllerConfig, match="spelt controllerStorePath"):
        read_controller_conf("controllerStorepath=/x")


@pytest.mark.parametrize(
    "text",
    [
        "listenPort=70000",
        "listenPort=x",
        "scanNotActiveBrokerInterval=1",
        "notifyBrokerRoleChanged=maybe",
        "metricsExporterType=OTLP_GRPC",
    ],
)
def test_a_value_that_is_not_allowed_is_refused(text: str) -> None:
    with pytest.raises(BadControllerConfig, match="must be"):
        read_controller_conf(text)


def test_the_file_of_a_name_server_has_other_keys_for_what_both_have() -> None:
    """Each has a port, a file of changed settings and pages of metrics."""
    text = (
        "listenPort=9876\ncontrollerListenPort=9999\nconfigStorePath=a\ncontrollerConfigStorePath=b\norderMessageEnable=true\n"
        "controllerDLegerSelfId=n7\nmetricsExporterType=PROM\nmetricsPromExporterPort=1\ncontrollerMetricsPromExporterPort=2"
    )

    config = read_controller_conf(text, embedded=True)

    assert (config.listen_port, config.config_store_path, config.self_id, config.others) == (9999, "b", "n7", {})
    assert (config.metrics_exporter_type, config.metrics_prom_exporter_port) == ("DISABLE", 2)
    assert read_controller_conf("listenPort=9876", embedded=True).listen_port == ControllerConfig().listen_port


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "haSecret is empty, and this controller listens beyond its machine"),
        ("bindAddress=127.0.0.1\ncontrollerDLegerSelfId=n5", "controllerDLegerSelfId is n5, which is not among"),
        ("bindAddress=127.0.0.1\ncontrollerDLegerPeers=n0", "controllerDLegerPeers is a list like"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(text: str, found: str) -> None:
    with pytest.raises(WrongHaSetting, match=found):
        read_controller_conf(text).replica_settings(1)


def test_a_group_on_one_machine_needs_no_secret() -> None:
    settings = read_controller_conf("bindAddress=127.0.0.1").replica_settings(19876)

    assert (settings.secret, settings.serves) == (b"", "127.0.0.1:19876")
