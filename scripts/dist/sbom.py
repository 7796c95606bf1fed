"""Prints the components of the packages as CycloneDX: the crates of the static program, from Cargo, and nats-server.

usage: sbom.py VERSION NATS-VERSION SECONDS   (SECONDS: time of the commit since 1970)
"""
import datetime, json, subprocess, sys, uuid

TARGET = "x86_64-unknown-linux-musl"


def tree_of_program():
    """Names and versions of the packages that are built for the program. `cargo metadata` also lists those of other features."""
    command = ["cargo", "tree", "--locked", "-p", "packetrig", "-e", "normal,build", "--target", TARGET, "--prefix", "none",
               "--no-dedupe", "-f", "{p}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {tuple(line.split()[:2]) for line in lines if line}


def linked_packages():
    """The program's package, all packages that it is built from, and what each depends on."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    built = tree_of_program()
    packages = {package["id"]: package for package in metadata["packages"]
                if (package["name"], "v" + package["version"]) in built}
    edges = {node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])]
             for node in metadata["resolve"]["nodes"]}
    [root] = [id for id, package in packages.items() if package["name"] == "packetrig"]
    return root, packages, edges


def checksums():
    """Checksums of Cargo.lock, by name and version."""
    found, name, version = {}, None, None
    for line in open("Cargo.lock"):
        key, _, value = line.strip().partition(" = ")
        value = value.strip('"')
        if key == "name":
            name = value
        elif key == "version":
            version = value
        elif key == "checksum":
            found[name, version] = value
    return found


def component(package, sums):
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    entry = {"type": "library", "bom-ref": purl, "name": package["name"], "version": package["version"], "purl": purl}
    if package.get("license"):
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = sums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def bill_of_materials(version, nats_version, seconds):
    root, packages, edges = linked_packages()
    sums = checksums()
    refs = {id: f"pkg:cargo/{package['name']}@{package['version']}" for id, package in packages.items()}
    nats = f"pkg:golang/github.com/nats-io/nats-server/v2@{nats_version}"
    components = sorted((component(packages[id], sums) for id in packages if id != root), key=lambda entry: entry["bom-ref"])
    components.append({"type": "application", "bom-ref": nats, "name": "nats-server", "version": nats_version, "purl": nats,
                       "licenses": [{"expression": "Apache-2.0"}]})
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    application = {"type": "application", "bom-ref": refs[root], "name": "packetrig", "version": version,
                   "licenses": [{"expression": "MIT OR Apache-2.0"}]}
    depends = [{"ref": refs[id], "dependsOn": sorted({refs[other] for other in edges[id] if other in packages})}
               for id in sorted(packages, key=refs.get)]
    # The same version with the same components gets the same serial number.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, version + "".join(entry["bom-ref"] for entry in components))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
            "metadata": {"timestamp": time, "component": application}, "components": components, "dependencies": depends}


version, nats_version, seconds = sys.argv[1:]
json.dump(bill_of_materials(version, nats_version, int(seconds)), sys.stdout, indent=1)
print()
