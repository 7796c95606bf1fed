//! Compiles the BPF programs in `bpf/` with clang, and makes constants from the layouts in `bpf/layout/`. The compiler has compared
//! these layouts with the programs' structures, so user space and programs cannot disagree about an offset.
//!
//! If clang is missing, the build fails with a message that names the package. `PACKETRIG_SKIP_BPF=1` puts empty
//! objects in their place, for checks of the Rust code alone; loading them fails. `PACKETRIG_BPF_BARRIERS=1` compiles
//! them as for processors that reorder loads and stores, so that tests can run those programs here, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const BPF_PROGRAMS: [&str; 6] = ["gate", "meter", "receive", "send", "tap", "train"];
const BPF_LAYOUTS: [&str; 7] = ["gate", "hold", "meter", "rings", "send", "tap", "train"];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=PACKETRIG_SKIP_BPF");
    println!("cargo::rerun-if-env-changed=PACKETRIG_BPF_BARRIERS");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    std::fs::write(out.join("layout.rs"), layout_constants()?)
        .map_err(|error| format!("cannot write layout.rs: {error}"))?;
    for program in BPF_PROGRAMS {
        let source = Path::new("bpf").join(format!("{program}.bpf.c"));
        let object = out.join(format!("{program}.o"));
        if std::env::var_os("PACKETRIG_SKIP_BPF").is_some() {
            std::fs::write(&object, [])
                .map_err(|error| format!("cannot write {}: {error}", object.display()))?;
            continue;
        }
        compile_program(&source, &object)?;
    }
    Ok(())
}

/// A module for each file of layouts: `FIELD(ring, read, 64)` becomes `ring::READ`, `SIZE(ring, n)` `ring::SIZE`. A `NUMBER_32` is of 32 bits.
fn layout_constants() -> Result<String, String> {
    let mut text = String::new();
    for name in BPF_LAYOUTS {
        let path = format!("bpf/layout/{name}.h");
        let header =
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
        text.extend(["pub(crate) mod ", name, " {\n", &header_constants(&header), "}\n"]);
    }
    Ok(text)
}

fn header_constants(header: &str) -> String {
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for line in header.lines() {
        let Some((kind, rest)) = line.split_once('(') else { continue };
        let arguments: Vec<&str> = rest.trim_end_matches(')').split(", ").collect();
        match (kind, &arguments[..]) {
            ("FIELD", [of, field, value]) => {
                modules.entry(of).or_default().push(constant_line(&field.to_uppercase(), "usize", value));
            }
            ("SIZE", [of, value]) => {
                modules.entry(of).or_default().push(constant_line("SIZE", "usize", value));
            }
            ("NUMBER", [name, value]) => {
                modules.entry("").or_default().push(constant_line(name, "usize", value));
            }
            ("NUMBER_32", [name, value]) => {
                modules.entry("").or_default().push(constant_line(name, "u32", value));
            }
            _ => {}
        }
    }
    let mut text = String::new();
    for (module, constants) in modules {
        match module {
            "" => text.extend(constants),
            _ => text.extend([format!("pub(crate) mod {module} {{\n"), constants.concat(), "}\n".to_owned()]),
        }
    }
    text
}

fn constant_line(name: &str, kind: &str, value: &str) -> String {
    format!("pub(crate) const {name}: {kind} = {value};\n")
}

fn compile_program(source: &Path, object: &Path) -> Result<(), String> {
    let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let flags = ["-target", "bpf", "-mcpu=v3", "-O2", "-Wall", "-Wextra", "-Werror", "-c"];
    let target = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // x86 keeps the order of stores, so the programs need no barriers there.
    let is_ordered = target == "x86_64" || target == "x86";
    let wants_barriers = std::env::var_os("PACKETRIG_BPF_BARRIERS").is_some();
    let ordered = (is_ordered && !wants_barriers).then_some("-DORDERED_STORES");
    match Command::new(clang).args(flags).args(ordered).arg(source).arg("-o").arg(object).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("clang could not compile {}: {status}", source.display())),
        Err(error) => Err(format!(
            "clang, which compiles {}, could not be run ({error}): install the package `clang`, or set \
             PACKETRIG_SKIP_BPF=1 for a build without the xdp back end",
            source.display()
        )),
    }
}
