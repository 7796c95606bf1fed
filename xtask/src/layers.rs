//! The table of crates: which crate may use which other crate; and operations that only `sys` may do.
//!
//! Dev-dependencies are free: tests may look at anything.

use crate::CheckFindings;
use crate::metadata::{self, CargoPackage};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A crate and the crates that it may use.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("wire", &["units"]),
    ("stats", &["units"]),
    ("plan", &["units", "wire"]),
    ("flow", &["units"]),
    ("sys", &["units"]),
    ("guard", &["units", "sys"]),
    ("engine", &["units", "wire", "stats", "plan", "sys", "guard"]),
    ("report", &["units", "plan", "stats"]),
    ("fleet", &["units", "plan", "stats", "report"]),
    ("probe", &["units", "wire", "stats"]),
    ("method", &["units", "stats"]),
    ("release", &["sys"]),
    ("page", &["units", "stats", "report", "method"]),
    ("probe-io", &["units", "wire", "plan", "sys", "guard", "probe", "release"]),
    ("flow-store", &["units", "flow", "sys", "probe"]),
    ("store", &["units", "stats", "sys", "report", "fleet", "method", "page"]),
    (
        "fleet-io",
        &[
            "units", "stats", "plan", "sys", "engine", "report", "fleet", "method", "store", "probe",
            "probe-io",
        ],
    ),
    ("flow-io", &["units", "wire", "flow", "sys", "engine"]),
    ("server", &["units", "plan", "stats", "report", "fleet", "page"]),
    ("nkeys", &[]),
    ("nats", &["units", "sys", "fleet", "nkeys"]),
    ("link", &["units", "wire", "plan"]),
    ("link-io", &["units", "wire", "stats", "plan", "sys", "engine", "link"]),
    ("testkit", &["units", "sys", "link"]),
    ("program", &["units", "sys"]),
    ("probe-cli", &["units", "wire", "plan", "sys", "probe", "probe-io", "release", "testkit", "program"]),
    (
        "cli",
        &[
            "units",
            "wire",
            "stats",
            "plan",
            "flow",
            "sys",
            "engine",
            "link",
            "link-io",
            "report",
            "fleet",
            "fleet-io",
            "flow-io",
            "flow-store",
            "probe",
            "probe-cli",
            "program",
            "method",
            "page",
            "store",
            "server",
            "nats",
            "testkit",
        ],
    ),
    ("xtask", &["sys"]),
    (
        "tests",
        &[
            "units",
            "wire",
            "stats",
            "plan",
            "flow",
            "flow-store",
            "sys",
            "engine",
            "link",
            "link-io",
            "report",
            "fleet",
            "probe",
            "release",
            "store",
            "server",
            "nats",
            "testkit",
        ],
    ),
    (
        "eval",
        &[
            "units", "wire", "stats", "plan", "flow", "sys", "engine", "report", "fleet", "probe",
            "probe-io", "page", "release", "method", "store", "fleet-io", "nats", "testkit", "tests",
        ],
    ),
];

/// Crates from elsewhere that only some of ours may use.
const RESTRICTED_CRATES: &[(&str, &[&str])] = &[
    ("libc", &["sys"]),
    ("rustix", &["sys", "tests", "eval"]),
    ("netlink-packet-core", &["sys"]),
    ("netlink-packet-route", &["sys"]),
    ("netlink-sys", &["sys"]),
    ("rusqlite", &["store"]),
    ("granit-parser", &["plan"]),
    ("hdrhistogram", &["stats"]),
    ("clap", &["cli", "program", "probe-cli"]),
    ("indicatif", &["cli"]),
    ("miette", &["cli"]),
    ("comfy-table", &["program"]),
    ("anyhow", &["xtask", "tests", "eval"]),
    ("async-nats", &["nats"]),
    ("axum", &["server"]),
    ("hyper", &["server"]),
    ("parquet", &["flow-store"]),
    ("ratatui", &["cli"]),
    ("ring", &["nats", "nkeys"]),
    ("rustls", &["server", "flow-io", "nats"]),
    ("tokio", &["server", "nats"]),
    ("tonic", &["server"]),
];

/// Only `sys` may read these clocks; other crates get the time as an argument.
const CLOCK_READS: &[&str] = &["Instant::now", "SystemTime::now"];

/// Calls that make files and directories with the mode of the umask: other users must not read private
/// content in them. `sys::private_files` replaces these calls.
const FILE_OPENING_CALLS: &[&str] = &[
    "File::create",
    "fs::write(",
    "fs::copy(",
    "fs::create_dir",
    ".create(true)",
    ".create_new(true)",
    "DirBuilder",
    "UnixListener::bind(",
];
/// The files that may call them: two for all, and one that follows no symbolic links.
const FILES_THAT_MAY_OPEN: [&str; 3] = [
    "crates/sys/src/private_files.rs",
    "crates/sys/src/private_files/opening.rs",
    "crates/sys/src/runtime_directory.rs",
];

pub(crate) fn check() -> Result<CheckFindings> {
    let metadata = metadata::read()?;
    let mut violations = Vec::new();
    let mut sources = 0;
    for package in metadata.members() {
        let ours = short_name(&package.name);
        violations.extend(dependencies(ours, package));
        let root = Path::new(&package.manifest_path).parent().context("a manifest without a folder")?;
        for file in rust_files(&root.join("src"))? {
            sources += 1;
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            violations.extend(source_violations(ours, &file.display().to_string(), &text));
        }
    }
    Ok(CheckFindings {
        looked_at: format!("{} crates, {sources} source files", ALLOWED_DEPENDENCIES.len()),
        violations,
    })
}

/// The short name of a package of ours; the binary's package is `cli`.
fn short_name(package: &str) -> &str {
    match package {
        "packetrig" => "cli",
        other => other.strip_prefix("packetrig-").unwrap_or(other),
    }
}

fn dependencies(ours: &str, package: &CargoPackage) -> Vec<String> {
    let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(name, _)| *name == ours) else {
        return vec![format!("crate `{ours}` is not in the table; a new crate needs a decision page")];
    };
    let used = package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev"));
    let used: Vec<&str> = used.map(|dependency| dependency.name.as_str()).collect();
    let unused = allowed.iter().filter(|other| !used.iter().any(|name| short_name(name) == **other));
    let unused =
        unused.map(|other| format!("`{ours}` may use `{other}`, but does not: take it out of the table"));
    used.iter().filter_map(|name| forbidden(ours, allowed, name)).chain(unused).collect()
}

fn forbidden(ours: &str, allowed: &[&str], dependency: &str) -> Option<String> {
    if let Some(other) = dependency.strip_prefix("packetrig-") {
        return (!allowed.contains(&other)).then(|| format!("`{ours}` must not use `{other}`"));
    }
    let (_, fence) = RESTRICTED_CRATES.iter().find(|(fenced, _)| *fenced == dependency)?;
    (!fence.contains(&ours)).then(|| format!("`{ours}` must not use crate `{dependency}`"))
}

fn source_violations(ours: &str, file: &str, text: &str) -> Vec<String> {
    let mut found = open_files(file, text);
    if ours == "sys" {
        return found;
    }
    let is_root = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
    if is_root && !text.contains("#![forbid(unsafe_code)]") {
        found.push(format!("{file}: the crate root must say #![forbid(unsafe_code)]"));
    }
    // This file contains the names that it forbids.
    let clocks =
        CLOCK_READS.iter().filter(|clock| text.contains(**clock) && !file.ends_with("xtask/src/layers.rs"));
    found.extend(clocks.map(|clock| format!("{file}: {clock}: only sys reads a clock")));
    found
}

/// Files that other users could read. Tests may make any files.
fn open_files(file: &str, text: &str) -> Vec<String> {
    let is_test = file.ends_with("tests.rs") || file.contains("/tests/");
    if is_test || !file.contains("crates/") || FILES_THAT_MAY_OPEN.iter().any(|own| file.ends_with(own)) {
        return Vec::new();
    }
    let code = text.split_once("mod tests {").map_or(text, |(code, _tests)| code);
    // `BulkFile::create_at` is another function.
    let is_call = |(at, _): (usize, &str)| !code[..at].ends_with(char::is_alphanumeric);
    let calls = FILE_OPENING_CALLS.iter().filter(|call| code.match_indices(**call).any(is_call));
    calls.map(|call| format!("{file}: {call}: files are made by packetrig_sys::private_files only")).collect()
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::CargoDependency;

    fn package(name: &str, uses: &[(&str, Option<&str>)]) -> CargoPackage {
        let dependency = |(name, kind): &(&str, Option<&str>)| CargoDependency {
            name: (*name).into(),
            kind: kind.map(Into::into),
        };
        CargoPackage {
            id: name.into(),
            name: name.into(),
            manifest_path: String::new(),
            dependencies: uses.iter().map(dependency).collect(),
        }
    }

    #[test]
    fn forbidden_dependency_and_unknown_crate_are_found() {
        let check = |name, uses: &[(&str, Option<&str>)]| {
            let mut found = dependencies(short_name(name), &package(name, uses));
            found.retain(|violation| !violation.contains("does not"));
            found
        };
        assert_eq!(
            check("packetrig-fleet", &[("packetrig-engine", None)]),
            ["`fleet` must not use `engine`"]
        );
        assert_eq!(check("packetrig-wire", &[("libc", None)]), ["`wire` must not use crate `libc`"]);
        assert_eq!(check("packetrig-wire", &[("packetrig-sys", Some("dev")), ("serde", None)]), [""; 0]);
        assert_eq!(check("packetrig-shed", &[]).len(), 1);
        assert_eq!(check("packetrig", &[("packetrig-fleet-io", None), ("clap", None)]), [""; 0]);
    }

    #[test]
    fn a_permission_that_is_not_used_is_found() {
        let uses = [("packetrig-units", None), ("packetrig-plan", None), ("packetrig-report", None)];
        let found = dependencies("fleet", &package("packetrig-fleet", &uses));
        assert_eq!(found, ["`fleet` may use `stats`, but does not: take it out of the table"]);
    }

    #[test]
    fn crates_depend_only_on_earlier_table_rows() {
        for (index, (ours, uses)) in ALLOWED_DEPENDENCIES.iter().enumerate() {
            for used in *uses {
                let place = ALLOWED_DEPENDENCIES.iter().position(|(name, _)| name == used);
                assert!(place < Some(index), "{ours} uses {used}");
            }
        }
    }

    #[test]
    fn clocks_and_missing_fences_are_found_in_sources() {
        assert_eq!(source_violations("wire", "crates/wire/src/lib.rs", "//! x").len(), 1);
        let clock = ["std::time::", "Instant::now()"].concat();
        assert_eq!(source_violations("wire", "crates/wire/src/tag.rs", &clock).len(), 1);
        assert_eq!(source_violations("sys", "crates/sys/src/clock.rs", &clock).len(), 0);
    }

    #[test]
    fn publicly_readable_file_creation_is_found_outside_tests() {
        let make = "File::create(path)?; std::fs::create_dir_all(path)?; BulkFile::create(path)?;";
        assert_eq!(source_violations("sys", "/x/crates/sys/src/bulk.rs", make).len(), 2);
        assert_eq!(source_violations("sys", "/x/crates/sys/src/private_files.rs", make).len(), 0);
        let in_tests = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{ {make} }}");
        assert_eq!(source_violations("wire", "/x/crates/wire/src/tag.rs", &in_tests).len(), 0);
        assert_eq!(source_violations("wire", "/x/crates/wire/src/tag/tests.rs", make).len(), 0);
    }
}
