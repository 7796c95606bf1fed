# A node of the fleet, inside its guest: NAME NUMBER PROGRAM. What the console hears: the line to join by, then words
# ("clock N": says the monotonic clock; "end": switches off).
name=$1 number=$2 program=$3
stty -F /dev/ttyS0 -echo
exec </dev/ttyS0
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
ip link set eth1 address "02:00:00:00:00:0$number" up
echo ready
read -r line
mkdir -p /run/node
printf '[[port]]\ninterface = "eth1"\n' >/run/node/owner.toml
echo "$line" >/run/node/line
"$program" agent --join /run/node/line --name "$name" --owner /run/node/owner.toml --store /run/node --spool 64 &
while read -r word number; do
    case $word in
    clock) sed -n "s/^now at \([0-9]*\) nsecs$/clock $number \1/p" /proc/timer_list ;;
    end) break ;;
    esac
done
kill $!
