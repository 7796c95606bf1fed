//! Version of the running kernel, and its settings under `/proc/sys`.
//!
//! This module owns nothing. A setting below `net/` belongs to the network namespace of the thread that
//! reads or writes it.

use crate::{Error, netns::NetNs};
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// Release of the running kernel, like `6.18.44`.
pub fn kernel_release_name() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Architecture of this machine, like `x86_64`.
pub fn architecture() -> String {
    rustix::system::uname().machine().to_string_lossy().into_owned()
}

/// Model of the processors, as the kernel names it; `None` if /proc/cpuinfo has no model, as on some architectures.
pub fn read_processor_model() -> Option<String> {
    // The file is read once: on machines with many processors the kernel needs some time to write it.
    static PROCESSOR_MODEL: OnceLock<Option<String>> = OnceLock::new();
    PROCESSOR_MODEL
        .get_or_init(|| processor_model_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?))
        .clone()
}

fn processor_model_in(cpuinfo: &str) -> Option<String> {
    // x86 says `model name`, MIPS `cpu model` and POWER `cpu`. Some ARM kernels only give the board, as `Model`.
    let names = ["model name", "cpu model", "Model", "cpu"];
    names.into_iter().find_map(|name| value_of(cpuinfo, name)).map(str::to_owned)
}

/// Returns the first value of the field `wanted` that is not empty.
fn value_of<'a>(cpuinfo: &'a str, wanted: &str) -> Option<&'a str> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let values = lines.filter(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim());
    values.into_iter().find(|value| !value.is_empty())
}

/// Host name of this machine (`uname -n`).
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Major and minor number of the running kernel; zero for a number that cannot be read from its release name.
pub fn version_numbers() -> (u32, u32) {
    parse_version(&kernel_release_name())
}

fn parse_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Reads `/proc/sys/KEY` in `netns`, for example `net/ipv6/conf/eth1/disable_ipv6`, without the newline at its end.
pub fn read_setting(netns: &NetNs, key: &str) -> Result<String, Error> {
    let path = setting_path(key)?;
    let text = netns.run_in_namespace(|| std::fs::read_to_string(&path))?;
    text.map(|text| text.trim_end().to_owned())
        .map_err(|error| Error::from_call("read", path.display().to_string(), error))
}

/// Writes `/proc/sys/KEY` in `netns`.
pub fn write_setting(netns: &NetNs, key: &str, value: &str) -> Result<(), Error> {
    let path = setting_path(key)?;
    netns.run_in_namespace(|| write_existing(&path, value))?.map_err(|error| {
        Error::from_call("write", path.display().to_string(), error)
            .with_rights("run as root; for settings below `net`, CAP_NET_ADMIN is enough (`setcap`)")
    })
}

/// Writes an existing file. Unlike `fs::write`, it creates no file if /proc is not mounted.
fn write_existing(path: &Path, value: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(value.as_bytes())
}

fn setting_path(key: &str) -> Result<PathBuf, Error> {
    let key = Path::new(key);
    // A key with `..` must not lead out of /proc/sys.
    if key.components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(Path::new("/proc/sys").join(key));
    }
    Err(Error::from_call(
        "find setting",
        key.display().to_string(),
        std::io::Error::from_raw_os_error(libc::EINVAL),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_model_is_found_where_architecture_names_it() {
        let x86 = "processor\t: 0\nmodel\t\t: 106\nmodel name\t: Fast (R) 2.0\nflags\t\t: a b\n";
        assert_eq!(processor_model_in(x86).as_deref(), Some("Fast (R) 2.0"));
        assert_eq!(
            processor_model_in("processor : 0\nFeatures : fp\n\nModel : Small Board 3\n").as_deref(),
            Some("Small Board 3")
        );
        assert_eq!(
            processor_model_in("processor : 0\nBogoMIPS : 50.00\nFeatures : fp\nmodel name :\n"),
            None
        );
    }

    #[test]
    fn versions_are_read_from_releases_of_every_distribution() {
        assert_eq!(parse_version("6.18.44-fc-v669"), (6, 18));
        assert_eq!(parse_version("5.10.0-28-amd64"), (5, 10));
        assert_eq!(parse_version("6.1-rc3"), (6, 1));
        assert_eq!(parse_version("strange"), (0, 0));
        assert!(version_numbers().0 >= 4, "{}", kernel_release_name());
    }

    #[test]
    fn setting_in_new_namespace_reads_back_as_written() {
        let netns = match NetNs::create_unnamed_namespace() {
            Ok(netns) => netns,
            Err(error) => return assert!(error.is_permission_error(), "{error}"),
        };
        write_setting(&netns, "net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
        assert_eq!(read_setting(&netns, "net/ipv6/conf/lo/disable_ipv6").unwrap(), "1");
    }

    #[test]
    fn a_key_cannot_leave_proc_sys() {
        let here = NetNs::current().unwrap();
        for key in ["../version", "/etc/passwd", "net/../../version"] {
            assert!(read_setting(&here, key).is_err(), "{key}");
        }
    }
}
