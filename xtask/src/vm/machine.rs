//! One guest, from its first file system to its exit code.
//!
//! Its processor is emulated (`tcg`), which works on every host, also inside another virtual machine.

use super::image::GuestImage;
use super::{CableSocket, GuestFiles, GuestRequest};
use anyhow::{Context, Result, bail};
use packetrig_sys::clock;
use std::fs;
use std::io::BufWriter;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

const INIT_SCRIPT: &str = include_str!("init.sh");
/// Beginnings of the names of our variables that the job gets besides a plain environment.
const PASSED_VARIABLE_PREFIXES: [&str; 3] = ["PACKETRIG_", "RUST_", "CARGO_MANIFEST_DIR"];
/// The guest ends itself at its limit; this much later it is ended from outside. It boots in the meantime.
const GUEST_KILL_DELAY_NS: u64 = 120_000_000_000;
const GUEST_CHECK_INTERVAL_NS: u64 = 20_000_000;
const GUEST_MEMORY_MB: &str = "1024";
const NODE_MEMORY_MB: &str = "512";
const GUEST_PROCESSORS: &str = "2";

/// Runs a command in a new guest, with our working directory.
pub(super) fn run(parts: &GuestFiles, target: &Path, request: &GuestRequest<'_>) -> Result<ExitCode> {
    let limit = request.limit;
    let place = target.join(format!("run-{}", std::process::id()));
    let out = place.join("out");
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let image = place.join("initramfs");
    write_guest_image(parts, &image, &job_script(request.command)?)
        .with_context(|| image.display().to_string())?;
    let mut command = qemu(parts, &place, limit);
    if let Some(cable) = &request.cable {
        plug_in_cable(&mut command, cable);
    } else {
        plug_cards(&mut command, has_igb(&parts.qemu));
        command.stdin(Stdio::null());
    }
    let mut guest = command.spawn().context("QEMU does not start")?;
    let ended =
        wait_for_guest(&mut guest, limit.saturating_mul(1_000_000_000).saturating_add(GUEST_KILL_DELAY_NS))?;
    let Some(code) = exit_code(&out) else {
        let log = place.join("console.log");
        let how = if ended { "ended without a result" } else { "did not end and was switched off" };
        bail!("the guest {how}; its kernel's words are in {}", log.display());
    };
    fs::remove_dir_all(&place).with_context(|| place.display().to_string())?;
    Ok(ExitCode::from(code))
}

fn write_guest_image(parts: &GuestFiles, path: &Path, job: &str) -> Result<()> {
    let mut image = GuestImage::new(BufWriter::new(fs::File::create(path)?));
    for directory in ["bin", "dev", "modules"] {
        image.directory(directory)?;
    }
    image.file("bin/busybox", &fs::read(&parts.busybox)?)?;
    image.file("init", INIT_SCRIPT.as_bytes())?;
    image.file("job", job.as_bytes())?;
    for (index, module) in parts.kernel.modules.iter().enumerate() {
        // The names sort in the order of loading.
        image.file(&format!("modules/{index:03}.ko"), &fs::read(module)?)?;
    }
    Ok(image.finish()?)
}

/// Script that the guest's shell runs in place of us.
fn job_script(command: &[&str]) -> Result<String> {
    let here = std::env::current_dir().context("there is no working directory")?;
    let here = here.to_str().context("the working directory has a strange name")?;
    let passed = std::env::vars()
        .filter(|(name, _)| PASSED_VARIABLE_PREFIXES.iter().any(|start| name.starts_with(start)));
    let mut variables: Vec<String> = passed.map(|(name, value)| format!("{name}={value}")).collect();
    variables.extend(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LANG=C.UTF-8"].map(Into::into));
    let words = variables.iter().map(String::as_str).chain(command.iter().copied());
    let words: Vec<String> = words.map(quoted).collect();
    Ok(format!("cd {} || exit 127\nexec env -i {}\n", quoted(here), words.join(" ")))
}

/// A word that the shell takes as it is.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn qemu(parts: &GuestFiles, place: &Path, limit: u64) -> Command {
    let share = |path: &Path, tag: &str, more: &str| {
        // QEMU reads two commas as one.
        let path = path.display().to_string().replace(',', ",,");
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")
    };
    let mut command = Command::new(&parts.qemu);
    command
        .args([
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-accel",
            "tcg,thread=multi",
        ])
        .args(["-cpu", "max", "-m", GUEST_MEMORY_MB, "-smp", GUEST_PROCESSORS, "-serial", "stdio", "-serial"])
        .arg(format!("file:{}", place.join("console.log").display()))
        .arg("-kernel")
        .arg(&parts.kernel.image)
        .arg("-initrd")
        .arg(place.join("initramfs"))
        // The guest uses the processor's own clock, which an emulated processor reads without leaving the
        // guest. The other clocks are devices, and a sender that reads the time all the time would block the
        // devices for everybody else. Names in capitals reach the first process as its environment.
        .args([
            "-append",
            &format!(
                "console=ttyS1 panic=-1 quiet mitigations=off tsc=reliable clocksource=tsc LIMIT={limit}"
            ),
        ])
        .args(["-virtfs", &share(Path::new("/"), "host", ",readonly=on")])
        .args(["-virtfs", &share(&place.join("out"), "out", "")]);
    command
}

/// Two interfaces, in this order: the host, and the cable. The stream loses no bytes: a sender that is faster
/// than the other end waits.
fn plug_in_cable(command: &mut Command, cable: &CableSocket) {
    let (listens, path) = match cable {
        CableSocket::Listens(path) => ("on", path),
        CableSocket::Connects(path) => ("off", path),
    };
    let end = format!("stream,id=cable,server={listens},addr.type=unix,addr.path={}", path.display());
    command.args(["-netdev", "user,id=host", "-device", "virtio-net-pci,netdev=host"]).args([
        "-netdev",
        &end,
        "-device",
        "virtio-net-pci,netdev=cable",
    ]);
}

/// True if this QEMU has a card that stamps the frames that it sends and receives (since 8.1).
fn has_igb(qemu: &Path) -> bool {
    let asked = Command::new(qemu).args(["-device", "igb,help"]).stdin(Stdio::null()).output();
    // Old versions print their unknown device, and still exit with success.
    asked.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).contains("igb options"))
}

/// Two network cards with clocks and nothing but a hub between them: `igb` where there is one, else `e1000e`, which has a clock but never
/// stamps. There are two memory nodes, each with a processor, a card, and half of the memory.
fn plug_cards(command: &mut Command, has_igb: bool) {
    command.args(["-machine", "q35"]);
    let kind = if has_igb { "igb" } else { "e1000e" };
    // Each node has its own root bus: for devices on the machine's common bus, the node is unknown.
    for (number, bus) in [("0", 16), ("1", 32)] {
        let memory = format!("memory-backend-ram,id=memory{number},size={NODE_MEMORY_MB}M");
        command.args(["-object", &memory]);
        let node = format!("node,nodeid={number},cpus={number},memdev=memory{number}");
        command.args(["-numa", &node]);
        let root = format!("pxb-pcie,id=root{number},bus=pcie.0,bus_nr={bus},numa_node={number}");
        command.args(["-device", &root]);
        command
            .args(["-device", &format!("pcie-root-port,id=port{number},bus=root{number},chassis={number}")]);
        command.args(["-netdev", &format!("hubport,id=card{number},hubid=0")]);
        let card = format!("{kind},bus=port{number},netdev=card{number},mac=52:54:00:00:00:0{number}");
        command.args(["-device", &card]);
    }
}

/// Waits for the guest's end; `false` if it had to be ended.
fn wait_for_guest(guest: &mut Child, longest_ns: u64) -> Result<bool> {
    let deadline = clock::monotonic_ns().saturating_add(longest_ns);
    while guest.try_wait()?.is_none() {
        if clock::monotonic_ns() >= deadline {
            guest.kill()?;
            guest.wait()?;
            return Ok(false);
        }
        clock::sleep_until_ns(clock::monotonic_ns() + GUEST_CHECK_INTERVAL_NS);
    }
    Ok(true)
}

fn exit_code(out: &Path) -> Option<u8> {
    fs::read_to_string(out.join("exit-code")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_job_as_they_are() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        let job = job_script(&["/bin/echo", "a b"]).expect("there is a working directory");
        assert!(job.ends_with(" '/bin/echo' 'a b'\n") && job.contains("'LANG=C.UTF-8'"), "{job}");
    }
}
