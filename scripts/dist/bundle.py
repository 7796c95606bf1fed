"""Sets the command and the capabilities of a container of runc.

usage: bundle.py CONFIG.JSON CAPABILITY,… COMMAND…
"""
import json, sys

path, capabilities, *command = sys.argv[1:]
config = json.load(open(path))
names = [name for name in capabilities.split(",") if name]
config["process"]["args"] = command
config["process"]["terminal"] = False
config["process"]["capabilities"] = {kind: names for kind in ("bounding", "effective", "permitted")}
config["process"].pop("rlimits", None)
# packetrig makes interfaces quiet by writing to /proc/sys/net, which has the settings of the container's own
# network. So /proc/sys must be writable, as with `--security-opt unmask=/proc/sys` of podman and
# `--security-opt systempaths=unconfined` of docker.
linux = config["linux"]
linux["readonlyPaths"] = [entry for entry in linux.get("readonlyPaths", []) if entry != "/proc/sys"]
json.dump(config, open(path, "w"))
