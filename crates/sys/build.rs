//! Compiles the BPF programs in `bpf/` with clang.
//!
//! A missing clang fails with one sentence naming the package. `PACKETRIG_SKIP_BPF=1` puts empty objects in their
//! place, for checks of the Rust code alone; loading them fails. `PACKETRIG_BPF_BARRIERS=1` compiles them as for processors
//! that reorder loads and stores, so that tests can run those programs here, too.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 6] = ["gate", "meter", "receive", "send", "tap", "train"];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=PACKETRIG_SKIP_BPF");
    println!("cargo::rerun-if-env-changed=PACKETRIG_BPF_BARRIERS");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    for program in PROGRAMS {
        let (source, object) =
            (Path::new("bpf").join(format!("{program}.bpf.c")), out.join(format!("{program}.o")));
        if std::env::var_os("PACKETRIG_SKIP_BPF").is_some() {
            std::fs::write(&object, []).map_err(|error| format!("{}: {error}", object.display()))?;
            continue;
        }
        compile(&source, &object)?;
    }
    Ok(())
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-Wall", "-Wextra", "-Werror", "-c"];
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let is_ordered = target == "x86_64" || target == "x86";
    let wants_barriers = std::env::var_os("PACKETRIG_BPF_BARRIERS").is_some();
    let ordered = (is_ordered && !wants_barriers).then_some("-DORDERED_STORES");
    match Command::new(clang).args(flags).args(ordered).arg(source).arg("-o").arg(object).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("clang on {}: {status}", source.display())),
        Err(error) => Err(format!(
            "clang, which compiles {}, could not be run ({error}): install the package `clang`, or set \
             PACKETRIG_SKIP_BPF=1 for a build without the xdp back end",
            source.display()
        )),
    }
}
