#!/bin/bash
# Makes the network and the cards of one bed. Runs once, inside the guest, before the command.
#
#   guest-bed.sh BED DELAY_US LOSS_PERCENT
#
#   basic, clock    dummy0 10.0.0.1, card rxe0. Traffic to oneself: rxe hands packets over without any wire.
#
#   two-port        card rxea on va 10.2.0.1 ----- wire: delay, loss ----- vb 10.2.0.2 on card rxeb
#                   clients come from 10.2.0.1, servers listen on 10.2.0.2
#
# Both cards of the two-port bed are in the initial network namespace, because Debian 12's libibverbs finds no device
# in another. A kernel keeps traffic between two addresses of its own off every wire, so policy routing sends it out.
set -euo pipefail

bed=$1 delay_us=$2 loss=$3

ip link set lo up # 127.0.0.1 comes with it

one_card() {
    [[ -e /sys/class/net/dummy0 ]] || ip link add dummy0 type dummy # the module makes the first one by itself
    ip addr add 10.0.0.1/24 dev dummy0
    ip link set dummy0 up
    rdma link add rxe0 type rxe netdev dummy0
}

two_ports() {
    ip link add va type veth peer name vb
    ip addr add 10.2.0.1/32 dev va
    ip addr add 10.2.0.2/32 dev vb
    ip link set va up
    ip link set vb up
    local interface
    # Each end receives packets whose source is an address of this very host: forged, by the usual rules.
    for interface in all va vb; do
        sysctl -qw "net.ipv4.conf.$interface.rp_filter=0" "net.ipv4.conf.$interface.accept_local=1"
    done
    # What this host sends (iif lo) to either address looks at table 10 and leaves by the opposite end. What arrives at
    # va or vb does not match, goes to table `local` and is delivered. The rule for `local` must therefore come second.
    #
    # This holds for TCP as for RDMA: a control channel to 10.2.0.x crosses the wire too, with its delay and its loss.
    # Only 127.0.0.1 avoids it.
    ip route add 10.2.0.2 dev va src 10.2.0.1 table 10
    ip route add 10.2.0.1 dev vb src 10.2.0.2 table 10
    ip rule add pref 10 iif lo lookup 10
    # librdmacm's kernel half asks, for each connection request, "would an answer leave by the port it came in on?", and
    # asks by output port (oif). Without these two rules the answer is no, and the request is rejected with error 28.
    ip rule add pref 11 oif va lookup 10
    ip rule add pref 12 oif vb lookup 10
    ip rule add pref 20 lookup local
    ip rule del pref 0
    # Nobody would answer ARP for an address the asker has itself.
    ip neigh add 10.2.0.2 lladdr "$(</sys/class/net/vb/address)" dev va nud permanent
    ip neigh add 10.2.0.1 lladdr "$(</sys/class/net/va/address)" dev vb nud permanent
    if [[ $delay_us != 0 || $loss != 0 ]]; then
        # limit: netem holds every packet that is under way and drops what is beyond; its default of 1,000 is less than
        # one transfer of 1 MiB, and the losses would look like the wire's.
        for interface in va vb; do
            tc qdisc add dev "$interface" root netem limit 100000 delay "${delay_us}us" loss "$loss%"
        done
    fi
    rdma link add rxea type rxe netdev va
    rdma link add rxeb type rxe netdev vb
}

case $bed in
    basic | clock) one_card ;;
    two-port) two_ports ;;
    *) echo "guest-bed.sh: no such bed: $bed" >&2; exit 1 ;;
esac
