#!/bin/sh
# Upgrade the brokers that the name servers in $LEDGERMQ_NAMESRV know, one after the other: rolling_upgrade.sh RESTART
#
# RESTART is a command of yours. It is called with the address of a broker, stops that broker in order (SIGTERM), waits for its
# end and starts the new version. Slaves and followers come first; a master is drained before. The next broker follows when
# nothing is missing in `ledgermq cluster status` and the log of this one is as long as its master's was. If that takes longer
# than $WAIT_SECONDS (600), the script ends with status 1, and all other brokers still run.
set -eu
restart=${1:?call it with the command that restarts a broker}

members=$(ledgermq cluster list)  # not in a pipeline, whose status would be that of its last command
brokers_that_are() { printf '%s\n' "$members" | awk -v role="$1" '$4 == role { print $5 }'; }

# The ends of the logs of a broker and of its master, from the status of the cluster.
log_ends() {
    awk -v broker="$1" '
        { sub(/ledgermq /, "") }  # the first word of a version
        NR == 1 { for (column = 1; column <= NF; column++) if ($column == "LOG_END") at = column }
        $3 == "master" { ends[$1] = $at }
        $4 == broker { name = $1; end = $at }
        END { if (name in ends) print end, ends[name] }'
}

wait_until_caught_up() {
    goal='' waited=0
    while :; do
        if status=$(ledgermq cluster status 2>&1); then
            ends=$(printf '%s\n' "$status" | log_ends "$1")
            goal=${goal:-${ends#* }}
            if [ -n "$ends" ] && [ "${ends% *}" -ge "$goal" ]; then return; fi
        fi
        waited=$((waited + 1))
        if [ "$waited" -gt "${WAIT_SECONDS:-600}" ]; then
            printf '%s\n%s has not caught up: look at it before you go on\n' "$status" "$1" >&2
            exit 1
        fi
        sleep 1
    done
}

upgrade() {
    "$restart" "$1"
    wait_until_caught_up "$1"
    echo "$1 is done"
}

masters=$(brokers_that_are master)
if [ -z "$masters" ]; then
    echo 'no master is listed: nothing was upgraded' >&2
    exit 1
fi
for broker in $(brokers_that_are slave); do upgrade "$broker"; done
for broker in $masters; do
    # Without another master to take the sends, a classic one is better not drained: they wait for its restart.
    if [ "$masters" != "$broker" ] || ledgermq dledger status >/dev/null 2>&1; then ledgermq broker drain "$broker"; fi
    upgrade "$broker"
done
