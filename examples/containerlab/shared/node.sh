# A node of the fleet: node.sh NAME
until [ -s /lab/join.txt ] && [ -e /sys/class/net/eth1 ]; do sleep 1; done
exec packetrig agent --name "$1" --owner /lab/owner.toml --join /lab/join.txt
