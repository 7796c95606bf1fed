//! The kernel's packet generator, driven through its files under `/proc/net/pktgen`.
//!
//! Each network namespace has its own generator: kernel threads (one per processor), and devices that are assigned to
//! the threads. A [`Pktgen`] owns the generator of one namespace: it holds a lock that excludes other packetrig
//! processes, and it refuses a generator to which another program has added devices. Dropping it removes its devices.
//! This code does not load the module, because that would change the machine.

use crate::error::ignore_failure;
use crate::lock::NameLock;
use crate::{Error, UnsupportedFeature, netns::NetNs};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::thread::JoinHandle;

/// Directory in the calling thread's namespace: `/proc/net` would be that of the process's first thread.
const PKTGEN_DIRECTORY: &str = "/proc/thread-self/net/pktgen";
const CONTROL_FILE: &str = "pgctrl";
const MISSING_RIGHTS_TEXT: &str = "needs CAP_NET_ADMIN outside of user namespaces: run as root";
/// The kernel's answer to an option that it accepted.
const ACCEPTED_ANSWER: &str = "OK";

/// The generator of a network namespace.
#[derive(Debug)]
pub struct Pktgen {
    netns: NetNs,
    threads: Vec<String>,
    devices: Vec<PktgenDevice>,
    _lock: NameLock,
}

/// Sender of the generator: an interface, or one of several senders on it (`eth1@2`).
#[derive(Debug)]
struct PktgenDevice {
    name: String,
    /// Can be used by any thread: the namespace matters only when the file is opened.
    file: File,
}

/// Progress of a device through its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceProgress {
    /// Frames that the interface's driver took.
    pub sent: u64,
    /// Frames that the driver refused for good.
    pub errors: u64,
    /// Time of the first attempt to send, on the monotonic clock in microseconds; 0 before the attempt.
    pub started_us: u64,
    /// Time of the last attempt, or the present time while the device runs, on the same clock; 0
    /// before the first attempt.
    pub stopped_us: u64,
    /// Kernel's report on the last command or run.
    pub result: String,
}

/// A run of all devices of a namespace. It continues by itself when this value is dropped.
#[derive(Debug)]
pub struct PktgenRun {
    thread: JoinHandle<Result<(), Error>>,
}

impl Pktgen {
    /// Opens the generator of `netns`. [`Error::Unsupported`] without the module, [`Error::Busy`] if another packetrig
    /// process has it, `EBUSY` if another program has added devices to it.
    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        let netns = NetNs::duplicate(netns)?;
        let threads = netns.run_in_namespace(list_pktgen_threads)??;
        let lock = NameLock::acquire_name(&netns, "packetrig/pktgen", &pktgen_object_name(&netns))?;
        let pktgen = Self { netns, threads, devices: Vec::new(), _lock: lock };
        // This process holds the lock, so no other packetrig process can add devices after the check.
        for thread in &pktgen.threads {
            if lists_devices(&pktgen.in_namespace(thread, read_file)?) {
                return Err(devices_in_use_error(&pktgen.netns));
            }
        }
        Ok(pktgen)
    }

    /// Number of kernel threads to which devices can be assigned.
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// Assigns a device to a kernel thread. Threads are counted from 0; a number that is too large begins again
    /// at the first thread.
    pub fn add_device(&mut self, thread: usize, device: &str) -> Result<(), Error> {
        let thread = self.threads[thread % self.threads.len()].clone();
        let command = format!("add_device {device}");
        self.in_namespace(&thread, |path| write_pktgen_command(path, &command))?;
        let file = self.in_namespace(device, open_file)?;
        self.devices.push(PktgenDevice { name: device.to_owned(), file });
        Ok(())
    }

    /// Sets an option of a device, like `count 1000`. The caller must check that numbers are in range: the kernel
    /// truncates numbers of more than ten digits, and wraps numbers that do not fit.
    pub fn set_option(&self, device: &str, option: &str) -> Result<(), Error> {
        let file = &mut &self.find_device(device)?.file;
        let object = format!("pktgen's {device}: {option}");
        // The kernel reads beyond the written bytes, until it finds a blank or a newline.
        let written = file.write_all(format!("{option}\n").as_bytes());
        // The same file has the kernel's answer to the last option.
        let result = self.read_progress(device)?.result;
        match written {
            Ok(()) if result.starts_with(ACCEPTED_ANSWER) => Ok(()),
            Ok(()) => Err(Error::from_call("write", object, std::io::Error::other(result))),
            Err(error) => Err(Error::from_call("write", object, error)),
        }
    }

    /// Reads the progress of a device.
    pub fn read_progress(&self, device: &str) -> Result<DeviceProgress, Error> {
        let file = &mut &self.find_device(device)?.file;
        let mut text = String::new();
        let done = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text));
        done.map_err(|error| Error::from_call("read", format!("pktgen's {device}"), error))?;
        Ok(parse_progress(&text))
    }

    /// Starts all devices. The kernel's threads notice within 100 ms.
    pub fn start_devices(&self) -> Result<PktgenRun, Error> {
        let netns = NetNs::duplicate(&self.netns)?;
        // The write returns when all devices have ended. A signal to the writing thread, for example at the end of the
        // process, stops the devices.
        let thread = std::thread::Builder::new().name("pktgen".into()).spawn(move || {
            netns.run_in_namespace(|| write_pktgen_command(&pktgen_path(CONTROL_FILE), "start"))?
        });
        let thread = thread.map_err(|error| Error::from_call("spawn", "pktgen", error))?;
        Ok(PktgenRun { thread })
    }

    /// Stops all devices. A device that has not noticed its start yet ignores the stop, so repeat this call until
    /// the run has ended.
    pub fn stop_devices(&self) -> Result<(), Error> {
        self.in_namespace(CONTROL_FILE, |path| write_pktgen_command(path, "stop"))
    }

    fn find_device(&self, name: &str) -> Result<&PktgenDevice, Error> {
        self.devices.iter().find(|device| device.name == name).ok_or_else(|| Error::Missing {
            what: "pktgen device",
            name: name.to_owned(),
            remedy: "add it first",
        })
    }

    fn in_namespace<T: Send>(
        &self,
        file: &str,
        act: impl FnOnce(&str) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let path = pktgen_path(file);
        self.netns.run_in_namespace(|| act(&path))?
    }
}

impl Drop for Pktgen {
    fn drop(&mut self) {
        if self.devices.is_empty() {
            return;
        }
        // A device that is sending cannot be removed, so all are stopped first. A drop cannot report a failure.
        ignore_failure(self.stop_devices());
        self.devices.clear();
        for thread in &self.threads {
            ignore_failure(self.in_namespace(thread, |path| write_pktgen_command(path, "rem_device_all")));
        }
    }
}

impl PktgenRun {
    /// Returns true if all devices have ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of all devices.
    pub fn wait_for_end(self) -> Result<(), Error> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn pktgen_object_name(netns: &NetNs) -> String {
    format!("pktgen in {}", netns.label())
}

/// Error for a generator that has devices already: another program uses it, or was killed before
/// it removed its devices.
fn devices_in_use_error(netns: &NetNs) -> Error {
    Error::Call {
        call: "open",
        object: pktgen_object_name(netns),
        source: std::io::Error::from_raw_os_error(libc::EBUSY),
        remedy: Some(
            "pktgen has devices already; write `rem_device_all` into each /proc/net/pktgen/kpktgend_* to remove them",
        ),
    }
}

fn pktgen_path(file: &str) -> String {
    format!("{PKTGEN_DIRECTORY}/{file}")
}

/// Lists the names of pktgen's kernel threads in the calling thread's namespace; an error if there are none.
fn list_pktgen_threads() -> Result<Vec<String>, Error> {
    let entries = std::fs::read_dir(PKTGEN_DIRECTORY).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::Unsupported(UnsupportedFeature {
            feature: "back end pktgen",
            needs: "the kernel module pktgen: `modprobe pktgen`".into(),
            found: "no /proc/net/pktgen".into(),
        }),
        _ => Error::from_call("read", PKTGEN_DIRECTORY, error),
    })?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("kpktgend_")).collect();
    names.sort();
    if names.is_empty() {
        return Err(Error::from_call(
            "read",
            PKTGEN_DIRECTORY,
            std::io::Error::other("pktgen has no kernel thread"),
        ));
    }
    Ok(names)
}

fn open_file(path: &str) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|error| Error::from_call("open", path, error).with_rights(MISSING_RIGHTS_TEXT))
}

fn read_file(path: &str) -> Result<String, Error> {
    let mut text = String::new();
    open_file(path)?.read_to_string(&mut text).map_err(|error| Error::from_call("read", path, error))?;
    Ok(text)
}

fn write_pktgen_command(path: &str, command: &str) -> Result<(), Error> {
    // The kernel cuts off the last byte of a command such as `start`, because it expects a newline there.
    let written = open_file(path)?.write_all(format!("{command}\n").as_bytes());
    written.map_err(|error| {
        Error::from_call("write", format!("{path}: {command}"), error).with_rights(MISSING_RIGHTS_TEXT)
    })
}

/// Returns true if a kernel thread's file names any device.
fn lists_devices(text: &str) -> bool {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("Running:").or_else(|| line.strip_prefix("Stopped:")));
    lines.into_iter().any(|names| !names.trim().is_empty())
}

/// The number after the first `key`; 0 if there is none.
fn parse_number_after(text: &str, key: &str) -> u64 {
    let behind = text.split_once(key).map_or("", |(_, behind)| behind.trim_start());
    let digits = behind.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
    digits.parse().unwrap_or(0)
}

fn parse_progress(text: &str) -> DeviceProgress {
    let result = text.split_once("Result:").map_or("", |(_, result)| result.trim());
    DeviceProgress {
        sent: parse_number_after(text, "pkts-sofar:"),
        errors: parse_number_after(text, "errors:"),
        started_us: parse_number_after(text, "started:"),
        stopped_us: parse_number_after(text, "stopped:"),
        result: result.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "Params: count 1000  min_pkt_size: 60  max_pkt_size: 60\n     frags: 0  delay: 100000\nCurrent:\n     \
        pkts-sofar: 864  errors: 3\n     started: 5636643us  stopped: 5722838us idle: 72789us\nResult: OK: 7(c1+d6) usec, \
        864 (60byte,0frags)\n  10010pps 4Mb/sec (4804800bps) errors: 3\n";

    #[test]
    fn progress_is_read_from_what_the_kernel_shows() {
        let progress = parse_progress(SHOWN);
        assert_eq!((progress.sent, progress.errors), (864, 3));
        assert_eq!((progress.started_us, progress.stopped_us), (5_636_643, 5_722_838));
        assert!(progress.result.starts_with("OK: 7("), "{}", progress.result);
        assert_eq!(parse_progress("Result: No such parameter \"x\"\n").result, "No such parameter \"x\"");
    }

    #[test]
    fn a_thread_with_devices_is_in_use() {
        assert!(!lists_devices("Running: \nStopped: \nResult: NA\n"));
        assert!(lists_devices("Running: \nStopped: eth0@0 \nResult: OK\n"));
        assert!(lists_devices("Running: eth0 \nStopped: \nResult: OK\n"));
    }

    #[test]
    fn a_kernel_without_it_says_what_it_needs() {
        if std::path::Path::new(PKTGEN_DIRECTORY).exists() {
            return;
        }
        let refused = NetNs::current().and_then(|netns| Pktgen::open_in(&netns)).err();
        assert!(refused.is_some_and(|error| error.to_string().contains("modprobe pktgen")));
    }
}
