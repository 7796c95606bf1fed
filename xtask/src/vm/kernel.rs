//! Debian's kernel and the modules a guest needs: from this machine if it has one, or unpacked in the user's cache.
//!
//! The package is not installed: it is downloaded and unpacked there, once. Invariant: the modules of a
//! [`GuestKernel`] are in an order in which they can be loaded.

use super::MissingGuestFile;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Modules of a guest: first the modules for the host's files, then the modules under test.
const WANTED_MODULES: [&str; 16] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "veth",
    "dummy",
    "8021q",
    "bridge",
    "sch_netem",
    "sch_fq",
    "sch_etf",
    "sch_prio",
    "pktgen",
    "e1000e",
    "igb",
];
/// Files of the package that are unpacked.
const UNPACKED_FILES: [&str; 17] = [
    "./boot/vmlinuz-*",
    "./lib/modules/*/kernel/drivers/virtio/*",
    "./lib/modules/*/kernel/drivers/net/virtio_net.ko*",
    "./lib/modules/*/kernel/drivers/net/net_failover.ko*",
    "./lib/modules/*/kernel/drivers/net/veth.ko*",
    "./lib/modules/*/kernel/drivers/net/dummy.ko*",
    "./lib/modules/*/kernel/drivers/net/ethernet/intel/e1000e/*",
    "./lib/modules/*/kernel/drivers/net/ethernet/intel/igb/*",
    "./lib/modules/*/kernel/drivers/i2c/algos/*",
    "./lib/modules/*/kernel/drivers/dca/*",
    "./lib/modules/*/kernel/drivers/ptp/*",
    "./lib/modules/*/kernel/drivers/pps/*",
    "./lib/modules/*/kernel/fs/*",
    "./lib/modules/*/kernel/net/*",
    "./lib/modules/*/kernel/lib/*",
    "./lib/modules/*/kernel/crypto/*",
    "./lib/modules/*/kernel/arch/*",
];
/// Depends on the newest kernel of the distribution.
const META_PACKAGE: &str = "linux-image-amd64";

/// A kernel that can be booted.
#[derive(Debug)]
pub(crate) struct GuestKernel {
    /// Its compressed image.
    pub(crate) image: PathBuf,
    /// Files of modules, dependencies first.
    pub(crate) modules: Vec<PathBuf>,
}

/// Looks in `cache`, then on this machine, then in the distribution's archive.
pub(crate) fn find_guest_kernel(cache: &Path) -> Result<Result<GuestKernel, MissingGuestFile>> {
    // The name differs from that of earlier versions, whose directory lacks modules of today.
    let unpacked = cache.join("linux-3");
    if let Some(kernel) = find_kernel_below(&unpacked).or_else(|| find_kernel_below(Path::new("/"))) {
        return Ok(Ok(kernel));
    }
    if let Err(error) = unpack_newest_kernel(cache, &unpacked) {
        return Ok(Err(MissingGuestFile::Kernel(format!("{error:#}"))));
    }
    let kernel =
        find_kernel_below(&unpacked).context("the unpacked kernel package lacks modules the guest needs")?;
    Ok(Ok(kernel))
}

/// A kernel installed below `root` that has all that is wanted.
fn find_kernel_below(root: &Path) -> Option<GuestKernel> {
    let entries = std::fs::read_dir(root.join("boot")).ok()?.flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.iter().rev().find_map(|name| {
        let release = name.strip_prefix("vmlinuz-")?;
        let image = root.join("boot").join(name);
        // Only root may read the kernel on some distributions.
        std::fs::File::open(&image).ok()?;
        let files = module_files(&root.join("lib/modules").join(release).join("kernel"));
        let modules = in_order(&WANTED_MODULES, &files, &|path| dependencies(&std::fs::read(path).ok()?))?;
        Some(GuestKernel { image, modules })
    })
}

/// Uncompressed modules by name.
fn module_files(directory: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.append(&mut module_files(&path));
        } else if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko")) {
            // A module's file name may have a dash where the kernel's name has an underscore.
            found.insert(name.replace('-', "_"), path);
        }
    }
    found
}

/// The wanted modules, each after the modules on which it depends; `None` if one is missing.
fn in_order(
    wanted: &[&str],
    files: &BTreeMap<String, PathBuf>,
    needs: &dyn Fn(&Path) -> Option<Vec<String>>,
) -> Option<Vec<PathBuf>> {
    let mut order: Vec<PathBuf> = Vec::new();
    for name in wanted {
        let path = files.get(*name)?;
        if order.contains(path) {
            continue;
        }
        let needed = needs(path)?;
        let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
        let before = in_order(&needed, files, needs)?;
        let new: Vec<PathBuf> = before.into_iter().filter(|path| !order.contains(path)).collect();
        order.extend(new);
        order.push(path.clone());
    }
    Some(order)
}

/// Modules on which a module depends, by its `.modinfo` section: strings with zeros between them.
fn dependencies(module: &[u8]) -> Option<Vec<String>> {
    const DEPENDS_KEY: &[u8] = b"\0depends=";
    let start =
        module.windows(DEPENDS_KEY.len()).position(|window| window == DEPENDS_KEY)? + DEPENDS_KEY.len();
    let text = module[start..].split(|byte| *byte == 0).next()?;
    let names = std::str::from_utf8(text).ok()?.split(',').filter(|name| !name.is_empty());
    Some(names.map(|name| name.replace('-', "_")).collect())
}

/// Downloads the distribution's newest kernel package and unpacks the needed files.
fn unpack_newest_kernel(cache: &Path, unpacked: &Path) -> Result<()> {
    // Unpacking uses a private directory and one final rename: another process may do the same at this time.
    let place = cache.join(format!("unpack-{}", std::process::id()));
    let (download, linux) = (place.join("download"), place.join("linux"));
    for directory in [&download, &linux] {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let package = newest_package()?;
    crate::report(&format!("vm: downloading {package}; it is unpacked below {}", cache.display()));
    let done = download_package(&package, &download).and_then(|file| extract_package(&file, &linux));
    if done.is_ok() && !unpacked.exists() {
        std::fs::rename(&linux, unpacked).with_context(|| unpacked.display().to_string())?;
    }
    std::fs::remove_dir_all(&place).with_context(|| place.display().to_string())?;
    done
}

fn download_package(package: &str, into: &Path) -> Result<PathBuf> {
    let got = Command::new("apt-get").args(["download", "-q", package]).current_dir(into).output();
    let got = got.context("apt-get does not run: only Debian and its relatives are served")?;
    let complaint = String::from_utf8_lossy(&got.stderr);
    ensure!(got.status.success(), "apt-get download {package}: {}", complaint.trim());
    let file = std::fs::read_dir(into)?.flatten().next().context("apt-get downloaded nothing")?;
    Ok(file.path())
}

fn newest_package() -> Result<String> {
    let asked = Command::new("apt-cache").args(["depends", META_PACKAGE]).output();
    let asked = asked.context("apt-cache does not run: only Debian and its relatives are served")?;
    let text = String::from_utf8_lossy(&asked.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let package = names.into_iter().find(|name| name.starts_with("linux-image-"));
    let package =
        package.with_context(|| format!("no package {META_PACKAGE} is known: `apt-get update`?"))?;
    Ok(package.to_owned())
}

fn extract_package(package: &Path, into: &Path) -> Result<()> {
    let unpacking =
        Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn();
    let mut unpacking = unpacking.context("dpkg-deb does not run")?;
    let archive = unpacking.stdout.take().context("dpkg-deb has no output")?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--wildcards", "-C"]).arg(into).args(UNPACKED_FILES).stdin(archive).stderr(Stdio::null());
    // tar complains about patterns without a match; files that are really missing are found later, by name.
    tar.status().context("tar does not run")?;
    ensure!(unpacking.wait()?.success(), "{} cannot be unpacked", package.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_between_zeros() {
        let found = dependencies(b"\x7fELF\0license=GPL\0depends=9pnet,net-fs\0name=9p\0");
        assert_eq!(found, Some(vec!["9pnet".to_owned(), "net_fs".to_owned()]));
        assert_eq!(dependencies(b"\0depends=\0"), Some(Vec::new()));
        assert_eq!(dependencies(b"no module"), None);
    }

    #[test]
    fn kernel_module_dependencies_come_first_and_once() {
        let files = ["a", "b", "c"].map(|name| (name.to_owned(), PathBuf::from(name))).into();
        let needs = |path: &Path| {
            let needed: &[&str] = match path.to_str()? {
                "a" => &["b", "c"],
                "b" => &["c"],
                _ => &[],
            };
            Some(needed.iter().map(|name| (*name).to_owned()).collect())
        };
        let order = in_order(&["a", "c"], &files, &needs);
        assert_eq!(order, Some(["c", "b", "a"].map(PathBuf::from).to_vec()));
        assert_eq!(in_order(&["d"], &files, &needs), None);
    }
}
