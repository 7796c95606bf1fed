"""Deploys a lab file of containerlab without containerlab: nodes are network namespaces, their images run by runc.

usage: clab.py LAB.clab.yml LAYOUT WORK NODE COMMAND...

LAYOUT is the unpacked OCI layout of packetrig's image, WORK a directory that does not exist. COMMAND is executed in NODE, again and again
for up to 60 s until it ends with code 0 or 7 (a busy machine sends late, and says so). Its output is shown.

Only what the examples use of containerlab's format is understood: kind linux, image, entrypoint, cmd, binds, exec and links. Images other
than packetrig's are routers of FRR; Debian's program `zebra` stands for them. Each node has an interface `eth0` in a management network, and
finds the others by name. As in containerlab, a node starts before its interfaces are there, and with all capabilities.
"""
import json, os, shlex, shutil, subprocess, sys, time

import yaml

# In the order of their numbers (capabilities(7)).
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN "
    "NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON "
    "BPF CHECKPOINT_RESTORE"
).split()
SECONDS_TO_SUCCEED = 60


def own_capabilities():
    """All capabilities that this process may give to a container."""
    with open("/proc/self/status") as status:
        bits = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))
    return [f"CAP_{name}" for number, name in enumerate(CAPABILITIES) if bits >> number & 1]


def call(*words, **options):
    return subprocess.run([str(word) for word in words], check=True, **options)


class Lab:
    def __init__(self, file, layout, work):
        self.directory = os.path.dirname(os.path.abspath(file))
        with open(file) as text:
            topology = yaml.safe_load(text)
        self.nodes = topology["topology"]["nodes"]
        self.links = topology["topology"]["links"]
        self.layout, self.work = layout, work
        self.addresses = {name: f"172.31.0.{number}" for number, name in enumerate(self.nodes, 2)}
        self.started = []

    def namespace(self, node):
        return f"clab{os.getpid()}-{node}"

    def in_node(self, node, *words):
        call("ip", "netns", "exec", self.namespace(node), *words)

    def deploy(self):
        call("ip", "netns", "add", self.namespace("mgmt"))
        # The lab's frames do not pass the host's firewall, and its bridge is in a namespace.
        self.in_node("mgmt", "ip", "link", "add", "br0", "type", "bridge")
        self.in_node("mgmt", "ip", "link", "set", "br0", "up")
        for node in self.nodes:
            call("ip", "netns", "add", self.namespace(node))
            self.in_node(node, "ip", "link", "set", "lo", "up")
            self.connect((node, "eth0"), ("mgmt", node))
            self.in_node("mgmt", "ip", "link", "set", node, "master", "br0")
            self.in_node(node, "ip", "addr", "add", f"{self.addresses[node]}/24", "dev", "eth0")
        for node, facts in self.nodes.items():
            if facts["image"].startswith("packetrig"):
                self.start_container(node, facts)
        for link in self.links:
            self.connect(*(end.split(":") for end in link["endpoints"]))
        for node, facts in self.nodes.items():
            if not facts["image"].startswith("packetrig"):
                self.start_router(node, facts)
            for command in facts.get("exec", []):
                self.execute(node, shlex.split(command))

    def connect(self, one, other):
        ends = [(self.namespace(node), name) for node, name in (one, other)]
        call("ip", "link", "add", ends[0][1], "netns", ends[0][0], "type", "veth", "peer", "name", ends[1][1], "netns", ends[1][0])
        for namespace, name in ends:
            call("ip", "-n", namespace, "link", "set", name, "up")

    def start_container(self, node, facts):
        bundle = f"{self.work}/{node}"
        call("umoci", "unpack", "--image", f"{self.layout}:latest", bundle)
        with open(f"{bundle}/rootfs/etc/hosts", "w") as hosts:
            hosts.write("127.0.0.1\tlocalhost\n")
            hosts.writelines(f"{address}\t{name}\n" for name, address in self.addresses.items())
        path = f"{bundle}/config.json"
        with open(path) as text:
            config = json.load(text)
        process, linux = config["process"], config["linux"]
        process["args"] = shlex.split(facts.get("entrypoint", "/usr/bin/packetrig")) + shlex.split(facts.get("cmd", ""))
        process["terminal"] = False
        names = own_capabilities()
        process["capabilities"] = {kind: names for kind in ("bounding", "effective", "permitted")}
        process.pop("rlimits", None)
        config["hostname"] = node
        # A privileged container: nothing of /proc is read-only or masked.
        linux["readonlyPaths"] = linux["maskedPaths"] = []
        for namespace in linux["namespaces"]:
            if namespace["type"] == "network":
                namespace["path"] = f"/run/netns/{self.namespace(node)}"
        for bind in facts.get("binds", []):
            source, target = bind.split(":")[:2]
            source = self.shared_copy(source)
            config["mounts"].append({"destination": target, "type": "bind", "source": source, "options": ["rbind", "rw"]})
        with open(path, "w") as text:
            json.dump(config, text)
        with open(f"{self.work}/{node}.log", "w") as log:
            call("runc", *self.runc_root(), "run", "--detach", "--bundle", bundle, self.namespace(node),
                 stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started.append(node)

    def shared_copy(self, source):
        """What a lab shares is copied once, so that the repository stays as it is."""
        copy = f"{self.work}/shared/{source}"
        if not os.path.exists(copy):
            shutil.copytree(f"{self.directory}/{source}", copy)
        return copy

    def runc_root(self):
        return ["--root", f"{self.work}/runc"]

    def start_router(self, node, facts):
        configuration = next(bind.split(":")[0] for bind in facts["binds"] if bind.split(":")[0].endswith(".conf"))
        state = f"{self.work}/{node}"
        os.mkdir(state)
        shutil.copy(f"{self.directory}/{configuration}", f"{state}/frr.conf")
        call("chmod", "-R", "a+rwX", state)
        self.in_node(node, "/usr/lib/frr/zebra", "--daemon", "--config_file", f"{state}/frr.conf", "--pid_file", f"{state}/pid",
                     "--socket", f"{state}/zserv", "--vty_socket", state, "--vty_port", "0")

    def execute(self, node, words, **options):
        return subprocess.run(["runc", *self.runc_root(), "exec", self.namespace(node), *words], **options)

    def succeed(self, node, words):
        until = time.monotonic() + SECONDS_TO_SUCCEED
        while True:
            done = self.execute(node, words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode in (0, 7) or time.monotonic() > until:
                print(done.stdout, flush=True)
                return done.returncode
            time.sleep(1)

    def destroy(self):
        for node in self.started:
            subprocess.run(["runc", *self.runc_root(), "delete", "--force", self.namespace(node)])
        for node in [*self.nodes, "mgmt"]:
            pid = f"{self.work}/{node}/pid"
            if os.path.exists(pid):
                with open(pid) as number:
                    os.kill(int(number.read()), 15)
            subprocess.run(["ip", "netns", "delete", self.namespace(node)])

    def print_logs(self):
        for file in sorted(os.listdir(self.work)):
            if file.endswith(".log"):
                with open(f"{self.work}/{file}") as log:
                    print(f"--- {file}\n{log.read()}", flush=True)


def main():
    file, layout, work, node, *words = sys.argv[1:]
    os.makedirs(work)
    lab = Lab(file, layout, work)
    code = 1
    try:
        lab.deploy()
        code = lab.succeed(node, words)
    finally:
        lab.destroy()
        if code not in (0, 7):
            lab.print_logs()
    sys.exit(code)


main()
