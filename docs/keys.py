"""Write `docs/reference/keys.md`: every key of the configurations of brokers, name servers and controllers, and its default.

Defaults, allowed values and whether a key may change at run time come from the code; the texts stand below.
`python docs/keys.py` writes the page; with `--check` it only compares. Either way it fails if a key has no text here, or a
text no key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from ledgermq.broker import config as broker
from ledgermq.broker.admin.settings import CHANGEABLE as BROKER_CHANGEABLE
from ledgermq.ha.controller import config as controller
from ledgermq.namesrv import config as namesrv
from ledgermq.remoting.tls import TLS_KEYS

PAGE = Path(__file__).with_name("reference") / "keys.md"

MS, HOURS, BYTES, PERCENT = "ms", "hours", "bytes", "%"
OURS = "Ours alone."
NEWER = "RocketMQ 5.x; not in 4.9."


class Text(NamedTuple):
    """What is said of a key."""

    meaning: str
    """What it means, in RocketMQ too."""
    unit: str = ""
    ours: str = ""
    """What differs here; empty where nothing does."""


BROKER: Mapping[str, Mapping[str, Text]] = {
    "Identity and role": {
        "brokerClusterName": Text("The cluster that the broker belongs to."),
        "brokerName": Text("The name that a master and its slaves, or the nodes of a DLedger group, have in common."),
        "brokerId": Text("0 for a master; each slave of a name has its own number above 0.", ours="A DLedger node has 0."),
        "brokerRole": Text(
            "`ASYNC_MASTER` answers a send when it is written, `SYNC_MASTER` when slaves have it too; `SLAVE` follows.",
            ours="A SYNC_MASTER never waits for fewer than two copies.",
        ),
        "brokerPermission": Text("6: clients may read and write; 4: only read; 2: only write."),
    },
    "Addresses and registration": {
        "listenPort": Text(
            "The port for clients; 0 takes a free one.", ours="The port two below serves the VIP channel of clients."
        ),
        "bindAddress": Text("The address of this machine to listen on; empty for all."),
        "brokerIP1": Text("The address that clients are given; empty for the machine's own."),
        "brokerIP2": Text("The address that slaves are given; empty for `brokerIP1`."),
        "namesrvAddr": Text(
            "The name servers, `host:port`, separated by `;`.", ours="`$LEDGERMQ_NAMESRV` is used where it is not set."
        ),
        "registerNameServerPeriod": Text("How often the broker registers.", MS, "Taken as 10 to 60 seconds."),
        "registerBrokerTimeoutMills": Text("How long a name server may take to answer a registration.", MS),
        "forceRegister": Text("Register each time, not only when a topic has changed.", ours="A slave always does."),
    },
    "Topics, groups and messages": {
        "autoCreateTopicEnable": Text("A send to an unknown topic creates it."),
        "autoCreateSubscriptionGroup": Text("A pull of an unknown group creates it."),
        "defaultTopicQueueNums": Text("The most queues of a topic that a send creates."),
        "clusterTopicEnable": Text("Clients may use the topic that has the cluster's name."),
        "brokerTopicEnable": Text("Clients may use the topic that has the broker's name."),
        "traceTopicEnable": Text("The topic for traces of messages exists."),
        "maxMessageSize": Text(
            "The largest body of a message.",
            BYTES,
            "Checked when a producer sends, and not again for copies of what is stored.",
        ),
        "messageDelayLevel": Text(
            "The delays of the levels 1, 2, and so on.",
            ours="Messages of a level that was removed are still delivered. If a level is shortened, messages that wait in it "
            "come after the new delay at the latest.",
        ),
        "regionId": Text("A word that is sent to clients, for their traces."),
        "traceOn": Text("Tells clients whether to trace."),
        "notifyConsumerIdsChangedEnable": Text("Members of a group are told when another one comes or goes."),
    },
    "Pulls": {
        "longPollingEnable": Text("A pull that finds nothing waits as long as the client allows."),
        "shortPollingTimeMills": Text("How long it waits otherwise.", MS),
        "slaveReadEnable": Text(
            "Send readers that are far behind to a slave.",
            ours="A slave of ours answers pulls with either value, one of Apache's 5.x only with `true`.",
        ),
        "maxTransferBytesOnMessageInMemory": Text("The most of one answer near the end of the log.", BYTES),
        "maxTransferCountOnMessageInMemory": Text("The most messages of one answer near the end of the log."),
        "maxTransferBytesOnMessageInDisk": Text("The most of one answer far behind the end.", BYTES),
        "maxTransferCountOnMessageInDisk": Text("The most messages of one answer far behind the end."),
        "accessMessageInMemoryMaxRatio": Text(
            "This share of the machine's memory before the end of the log counts as near, the rest as far behind.", PERCENT
        ),
        "maxFilterMessageSize": Text("How much of a consume queue one pull with a tag filter reads.", BYTES),
        "defaultQueryMaxNum": Text("The most messages of an answer to a query by key."),
        "offsetCheckInSlave": Text("A slave, too, corrects an offset that its queue does not have."),
        "useServerSideResetOffset": Text(
            "Members of a group that is reset learn the new offset from their next pulls, not from a request to each of them.",
            ours="`false` as in 4.9; 5.x has `true`.",
        ),
    },
    "Store": {
        "storePathRootDir": Text("The directory of the store."),
        "storePathCommitLog": Text(
            "The directory of the commit log; by default `commitlog` in the store.", ours="One directory, not a list."
        ),
        "mappedFileSizeCommitLog": Text("The size of a segment; the same on all copies.", BYTES),
        "mappedFileSizeConsumeQueue": Text("The size of a file of a consume queue, a multiple of 20.", BYTES),
        "maxHashSlotNum": Text("The slots of a file of the key index."),
        "maxIndexNum": Text("The entries of a file of the key index."),
        "messageIndexEnable": Text("Messages can be found by key."),
        "flushDiskType": Text(
            "`ASYNC_FLUSH` answers a send when it is in the page cache, `SYNC_FLUSH` when it is on the disk.",
            ours="With `SYNC_FLUSH` consumers see a message only after its sync.",
        ),
        "flushIntervalCommitLog": Text("How often the log is synced with `ASYNC_FLUSH`.", MS),
        "flushIntervalConsumeQueue": Text("How often queues, index and checkpoint are synced, at most.", MS),
        "syncFlushTimeout": Text("How long a send waits for the disk with `SYNC_FLUSH`.", MS),
        "checkCRCOnRecover": Text("A start that reads the log back checks the bodies."),
        "flushDelayOffsetInterval": Text("How often the positions of delayed messages are written.", MS),
        "flushConsumerOffsetInterval": Text("How often the offsets of groups are written.", MS),
    },
    "Retention": {
        "fileReservedTime": Text("How long segments are kept.", HOURS),
        "deleteWhen": Text("The hours of the day at which expired segments are deleted, separated by `;`."),
        "diskMaxUsedSpaceRatio": Text("If more of the disk is used, expired segments are deleted at any hour.", PERCENT),
        "cleanFileForciblyEnable": Text(
            "What a disk over 85 % full loses before it has expired: with `true` the oldest segments, with `false` nothing.",
            ours="The default `consumed` takes only what all groups have read. RocketMQ's default is `true`.",
        ),
        "cleanResourceInterval": Text("How often the broker looks for what to delete.", MS),
        "deleteFileBatchMax": Text("The most segments that are deleted at once."),
        "scrubBytesPerSecond": Text(
            "How much of the log is read back in a second to find damaged records; 0 reads nothing.", BYTES, OURS
        ),
    },
    "Master and slaves": {
        "haListenPort": Text(
            "Where the master takes slaves; 0 means `listenPort` + 1.",
            ours="Slaves learn of another one when they register next.",
        ),
        "haMasterAddress": Text(
            "The master of a slave, `host:port`; by default the name server says it.", ours="Kept for good."
        ),
        "haSendHeartbeatInterval": Text("The longest silence of either side.", MS),
        "haHousekeepingInterval": Text("A peer that was silent for so long is cut off.", MS),
        "haTransferBatchSize": Text("The size of a frame in the classic protocol.", BYTES),
        "haMaxGapNotInSync": Text("A slave that is so far behind does not count.", BYTES),
        "slaveTimeout": Text("How long a send waits for slaves.", MS),
        "inSyncReplicas": Text("How many copies a waiting send needs, the master's included.", ours=NEWER),
        "minInSyncReplicas": Text("With fewer copies within reach a SYNC_MASTER refuses sends.", ours=NEWER),
        "syncFrom": Text("Where an empty slave begins: with the master's `last` segment, or with its `first`.", ours=OURS),
        "haProtocol": Text(
            "`ledgermq` proves who both sides are and compares the logs; `rocketmq` is RocketMQ's protocol, for a pair with a"
            " broker of Apache's: the classic one, or with `enableControllerMode` that of its controller mode.",
            ours=OURS,
        ),
        "haAcceptLoss": Text("A slave drops acknowledged messages that its master has lost; otherwise it refuses.", ours=OURS),
        "haSecret": Text(
            "The secret that master and slaves, or the nodes of a group, share; empty authenticates nobody.",
            ours=OURS + " `$LEDGERMQ_HA_SECRET` is used where neither it nor `haSecretFile` is set.",
        ),
        "haSecretFile": Text("The file that has the secret, instead of `haSecret`.", ours=OURS),
        "allowEmptyHaSecret": Text(
            "A node of a DLedger group that listens beyond this machine starts without a secret.", ours=OURS
        ),
    },
    "Controller": {
        "enableControllerMode": Text("A controller elects the master of the brokers of this name.", ours=NEWER),
        "controllerAddr": Text("All controllers, `host:port`, separated by `;`.", ours=NEWER),
        "allAckInSyncStateSet": Text(
            "A send waits for all replicas in sync; otherwise for `inSyncReplicas` of them, and a failover may lose it.",
            ours="The default is `true`; RocketMQ's is `false`.",
        ),
        "syncFromLastFile": Text(
            "An empty replica begins with the master's last segment, not its first; as master it lacks what is before.",
            ours=NEWER,
        ),
        "asyncLearner": Text(
            "A replica only copies the log; it is never in sync, and so it is not elected once the name has had a master.",
            ours=NEWER,
        ),
        "haMaxTimeSlaveNotCatchup": Text(
            "A replica that is behind for so long is no longer in sync.", MS, ours="RocketMQ waits for 15,000."
        ),
        "brokerHeartbeatInterval": Text(
            "How often the broker tells the controller that it lives.", MS, ours="RocketMQ does so every 1,000."
        ),
        "controllerHeartBeatTimeoutMills": Text(
            "A master that was silent for so long is replaced.", MS, ours="RocketMQ waits for 10,000."
        ),
        "syncBrokerMetadataPeriod": Text("How often the broker asks who is master, besides the controller's notices.", MS),
        "brokerElectionPriority": Text("Among replicas with equal logs the lowest number is elected.", ours=NEWER),
    },
    "Users and rights": {
        "aclEnable": Text(
            "ACL 1.0: only requests are carried out that an account of `plain_acl.yml` has signed and may send.",
            ours="Not together with `authenticationEnabled`. The file is read again when it changes.",
        ),
        "rocketmqHome": Text(
            "The directory whose `conf/plain_acl.yml` and `conf/acl/*.yml` have the accounts.",
            ours="If empty, `storePathRootDir`.",
        ),
        "authenticationEnabled": Text("Only requests that a user has signed are carried out.", ours=NEWER),
        "authorizationEnabled": Text(
            "Users may do only what their rights say; super users everything.",
            ours="Refused without `authenticationEnabled`. Requests that RocketMQ lets through need a right, too.",
        ),
        "initAuthenticationUser": Text(
            'A super user that always exists: `{"username":"admin","password":"…"}`.',
            ours="`$LEDGERMQ_INIT_AUTHENTICATION_USER` is used where neither it nor the file is set.",
        ),
        "initAuthenticationUserFile": Text("The file that has it, instead of `initAuthenticationUser`.", ours=OURS),
        "innerClientAuthenticationCredentials": Text(
            'With what a slave signs its requests to the master: `{"accessKey":"…","secretKey":"…"}`. The master takes them for'
            " those of a super user.",
            ours="Nodes with the same `haSecret` need none. `$LEDGERMQ_INNER_CLIENT_AUTHENTICATION_CREDENTIALS` is used where"
            " neither it nor the file is set.",
        ),
        "innerClientAuthenticationCredentialsFile": Text(
            "The file that has them, instead of `innerClientAuthenticationCredentials`.", ours=OURS
        ),
    },
    "DLedger": {
        "enableDLegerCommitLog": Text("The broker is a node of a DLedger group."),
        "dLegerGroup": Text("The name of the group; empty means `brokerName`."),
        "dLegerPeers": Text(
            "The nodes of a new group, `n0-host:port`, separated by `;`.", ours="Later the log says who is a member."
        ),
        "dLegerSelfId": Text(
            "Which of them this node is: a letter and a number.",
            ours="The broker's id of a follower is that number and one more.",
        ),
        "preferredLeaderId": Text(
            "Nodes that should lead when they can, separated by `;`.", ours="Refused with `raftDialect=java`."
        ),
        "raftDialect": Text(
            "`native` for nodes of ours, `java` for a group with nodes of Apache's: then a failover takes seconds, members do"
            " not change, and `haSecret` is empty.",
            ours=OURS,
        ),
        "raftFlush": Text(
            "A node acknowledges an entry when it is on its disk (`sync`), or when it is written (`async`), which a power cut"
            " of a majority may lose.",
            ours=OURS,
        ),
        "storeType": Text(
            "`default`: the store is in files. `MEMORY`: all of it is in the memory of the process, for tests and witnesses,"
            " and the node comes back from each stop empty: [a store in memory](../operate/dledger.md#a-store-in-memory).",
            ours="RocketMQ has no `MEMORY` here, only DLedger; `defaultRocksDB` stops the start.",
        ),
        "storePathDLedgerCommitLog": Text(
            "The directory of the ledger; by default `dledger-` and the node's id in the store.",
            ours="One directory, not a list.",
        ),
    },
    "Metrics": {
        "metricsExporterType": Text("`PROM` serves metrics and probes over HTTP.", ours="RocketMQ 5.x has more values."),
        "metricsPromExporterHost": Text(
            "The address to serve them on; empty for all.", ours="This machine alone by default; RocketMQ serves all."
        ),
        "metricsPromExporterPort": Text("The port."),
    },
}

NAMESRV: Mapping[str, Text] = {
    "listenPort": Text("The port; `--port` has priority."),
    "bindAddress": Text("The address to listen on; `--host` has priority."),
    "kvConfigPath": Text(
        "The file of the KV configuration, by default `~/namesrv/kvConfig.json`.", ours="If empty it is in memory alone."
    ),
    "configStorePath": Text(
        "The file of settings that administrators changed, by default `~/namesrv/namesrv.properties`.",
        ours="If empty they are in memory alone.",
    ),
    "orderMessageEnable": Text("Routes carry the order configuration of their topic."),
    "returnOrderTopicConfigToBroker": Text("A broker that registers is given the order configuration."),
    "scanNotActiveBrokerInterval": Text("How often brokers that are silent are looked for.", MS),
    "serverChannelMaxIdleTimeSeconds": Text(
        "A connection that is silent for so long is closed; a broker is dropped after 120 s of silence in any case.",
        "s",
    ),
    "supportActingMaster": Text("Of a broker without a master, routes name the slave with the lowest id as one, for reading."),
    "notifyMinBrokerIdChanged": Text("Brokers are told when another one of their name gets the lowest id."),
    "deleteTopicWithBrokerRegistration": Text(
        "A registration removes the topics that it does not have.",
        ours="What our brokers register between periods removes none here; at a name server of RocketMQ it would.",
    ),
    "enableAllTopicList": Text("Clients may ask for the names of all topics."),
    "enableTopicList": Text("Clients may ask for the topics of a cluster, and for those of RocketMQ's units."),
    "enableControllerInNamesrv": Text(
        "The process runs a controller, too, whose keys are in the same file.",
        ours="Its port and its file of changed settings are `controllerListenPort` and `controllerConfigStorePath`, because "
        "`listenPort` and `configStorePath` are the name server's.",
    ),
    "metricsExporterType": Text("`PROM` serves metrics and probes over HTTP.", ours=OURS),
    "metricsPromExporterHost": Text("The address to serve them on; empty for all.", ours=OURS),
    "metricsPromExporterPort": Text("The port.", ours=OURS),
    "configBlackList": Text("Keys that no administrator may change through the network."),
}

CONTROLLER: Mapping[str, Text] = {
    "listenPort": Text(
        "The port on which brokers and administrators ask; `--port` has priority.",
        ours="RocketMQ's controllers answer at the addresses of `controllerDLegerPeers`.",
    ),
    "bindAddress": Text("The address to listen on, also for the other controllers; `--host` has priority."),
    "controllerDLegerGroup": Text("The name of the group of controllers."),
    "controllerDLegerPeers": Text("The controllers, by id, with the addresses at which they talk to each other."),
    "controllerDLegerSelfId": Text("The id of this one."),
    "controllerStorePath": Text("Where its log is.", ours="`~/controller` on the command line."),
    "configStorePath": Text(
        "The file of settings that administrators changed, by default `~/controller/controller.properties`.",
        ours="If empty they are in memory alone.",
    ),
    "enableElectUncleanMaster": Text(
        "A replica outside the SyncStateSet is elected if no member is alive. It may lack acknowledged messages."
    ),
    "notifyBrokerRoleChanged": Text("Replicas are notified of a new master; otherwise they learn of it when they ask."),
    "scanNotActiveBrokerInterval": Text(
        "How often an election that failed is tried again.", MS, "A master's death is noticed at once."
    ),
    "serverChannelMaxIdleTimeSeconds": Text("A connection that is silent for so long is closed.", "s"),
    "metricsExporterType": Text("`PROM` serves metrics and probes over HTTP.", ours="RocketMQ 5.x has more values."),
    "metricsPromExporterHost": Text(
        "The address to serve them on; empty for all.", ours="This machine alone by default; RocketMQ serves all."
    ),
    "metricsPromExporterPort": Text("The port.", ours="RocketMQ's is 5557, as a broker's."),
    "haSecret": Text(
        "The secret of all controllers of the group.", ours=f"{OURS} Also `haSecretFile`, or `$LEDGERMQ_HA_SECRET`."
    ),
    "allowEmptyHaSecret": Text("No secret is needed, even if the controller listens beyond its machine.", ours=OURS),
    "authenticationEnabled": Text(
        "Only requests are carried out that are signed with `haSecret`, which brokers and commands then need too.", ours=OURS
    ),
    "configBlackList": Text("Keys that no administrator may change through the network."),
}

TLS: Mapping[str, Text] = {
    "tls.server.mode": Text("`disabled` closes TLS connections, `permissive` takes both kinds, `enforcing` closes plain ones."),
    "tls.config.file": Text(
        "A file with more of these keys, which win over those in the server's own file.", ours="Empty: none."
    ),
    "tls.test.mode.enable": Text(
        "The server makes a certificate of its own, and clients believe any.",
        ours="`false` where a `certPath` is set; RocketMQ ignores the certificate then.",
    ),
    "tls.server.certPath": Text("The server's certificate chain (PEM)."),
    "tls.server.keyPath": Text("Its key (PEM)."),
    "tls.server.keyPassword": Text("The password of that key."),
    "tls.server.trustCertPath": Text("Who may have signed the certificates of clients."),
    "tls.server.need.client.auth": Text("Whether clients are asked for a certificate.", ours="`require` needs `authClient`."),
    "tls.server.authClient": Text("Certificates of clients are checked."),
    "tls.enable": Text("Connections that this process opens speak TLS."),
    "tls.client.certPath": Text("The certificate that it shows there."),
    "tls.client.keyPath": Text("The key of that certificate."),
    "tls.client.keyPassword": Text("The password of that key."),
    "tls.client.authServer": Text("Certificates of servers are checked.", ours="`true` where there is a `trustCertPath`."),
    "tls.client.trustCertPath": Text("Who may have signed the certificates of servers."),
}
TLS_DEFAULTS = {
    "tls.server.mode": "permissive",
    "tls.config.file": "/etc/rocketmq/tls.properties",
    "tls.test.mode.enable": "true",
    "tls.server.need.client.auth": "none",
}

_INTRODUCTION = """# Every key of the servers

<!-- Made by `python docs/keys.py` from the code; do not edit. -->

The keys are RocketMQ's, in its format: one `key=value` a line. *live* says that a key may change while the server runs: by
SIGHUP after a change of the file (brokers), or by `mqadmin updateBrokerConfig`, `updateNamesrvConfig` and
`updateControllerConfig`. Each key of a
broker is a flag of `ledgermq broker` too (`--listenPort 10911` or `--listen-port 10911`), which has priority over the file,
and `ledgermq broker -c FILE -p` prints all with their values. Whole numbers may end with `k`, `m` or `g`, which are powers
of 1,024.

A key that nobody knows and that looks like one of these is refused, because it would be ignored. Other unknown keys are
kept, and named in one warning at the start.
"""


def _shown(key: str, value: object) -> str:
    if key == "storePathRootDir":
        return "`~/store`"
    if value is None or value == "":
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _row(key: str, default: str, live: bool, text: Text, key_type: str) -> str:
    meaning = text.meaning + (f" *{text.ours}*" if text.ours else "")
    unit = text.unit or ("number" if key_type == "int" else "true, false" if key_type == "bool" else "")
    return f"| `{key}` | {default} | {unit} | {'live' if live else ''} | {meaning} |\n"


def _table(
    texts: Mapping[str, Text], fields: Mapping[str, attrs.Attribute[Any]], is_live: Callable[[str], bool]
) -> Iterator[str]:
    yield "\n| key | default | unit | live | meaning, *and what is ours* |\n|---|---|---|---|---|\n"
    for key, text in texts.items():
        default: Any = fields[key].default
        shown = "" if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
        yield _row(key, _shown(key, shown), is_live(key), text, str(fields[key].type))


def _fields(configuration: type[Any], keys: Mapping[str, str]) -> dict[str, attrs.Attribute[Any]]:
    of_name = {field.name: field for field in attrs.fields(configuration)}
    return {key: of_name[name] for key, name in keys.items()}


def _complete(what: str, texts: set[str], keys: set[str]) -> None:
    if texts != keys:
        sys.exit(f"{__file__}: {what}: without a text {sorted(keys - texts)}, without a key {sorted(texts - keys)}")


def page() -> str:
    """The whole page; ends the process if the texts do not fit the keys."""
    of_broker = _fields(broker.BrokerConfig, broker.KEYS)
    of_namesrv = _fields(namesrv.NamesrvConfig, namesrv.KEYS)
    _complete("broker", {key for texts in BROKER.values() for key in texts}, set(of_broker))
    _complete("name server", set(NAMESRV), set(of_namesrv))
    of_controller = _fields(controller.ControllerConfig, controller.KEYS)
    _complete("controller", set(CONTROLLER), set(of_controller))
    _complete("TLS", set(TLS), set(TLS_KEYS))
    parts = [_INTRODUCTION]
    for title, texts in BROKER.items():
        parts += [
            f"\n## Broker: {title.lower() if title != 'DLedger' else title}\n",
            *_table(texts, of_broker, BROKER_CHANGEABLE.__contains__),
        ]
    parts += ["\n## Name server\n", *_table(NAMESRV, of_namesrv, namesrv.CHANGEABLE.__contains__)]
    parts += ["\n## Controller\n", *_table(CONTROLLER, of_controller, controller.CHANGEABLE.__contains__)]
    parts.append("\n## TLS, of all servers\n\nRead at the start; files that a key names are read again when they change.\n")
    parts.append("\n| key | default | values | meaning, *and what is ours* |\n|---|---|---|---|\n")
    for key, text in TLS.items():
        default = TLS_DEFAULTS.get(key, "false" if TLS_KEYS[key] == ("true", "false") else "")
        meaning = text.meaning + (f" *{text.ours}*" if text.ours else "")
        parts.append(f"| `{key}` | {_shown(key, default)} | {', '.join(TLS_KEYS[key])} | {meaning} |\n")
    parts.append("\n## Keys that stop the start\n\nRocketMQ has them for what is not here.\n\n| key | why |\n|---|---|\n")
    parts += [f"| `{key}=true` | there is no {why} |\n" for key, why in broker.NOT_THERE.items()]
    parts += [
        f"| `{key}` other than {f'`{only}`' if only else 'empty'} | {why} |\n" for key, (only, why) in broker.ONLY.items()
    ]
    return re.sub(r" +\|", " |", "".join(parts))


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what the code has: run python {__file__}")


if __name__ == "__main__":
    main()
