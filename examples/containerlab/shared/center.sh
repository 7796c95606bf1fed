# The centre of the fleet. The nodes find the join line in this directory.
packetrig fleet up --address center &
until packetrig fleet invite --uses 2 >/lab/join.new; do sleep 1; done
mv /lab/join.new /lab/join.txt
wait
