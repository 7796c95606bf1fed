//! Every package of the lock file has a licence we may ship, is not one we decided against, and comes in one version.

use crate::Checked;
use crate::metadata;
use anyhow::Result;
use std::collections::BTreeMap;

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates we decided against, and why.
const BANNED: &[(&str, &str)] = &[
    ("af_packet", "GPL-3.0, and stale"),
    ("openssl", "rustls is the TLS of this project"),
    ("serde_yaml", "deprecated"),
    ("serde_yml", "RUSTSEC-2025-0068"),
    ("xdpilone", "EUPL-1.2"),
];

/// Packages that come in two versions for now, and through whom.
const TWICE: &[(&str, &str)] = &[
    ("base64", "rcgen, through pem"),
    ("bitflags", "netlink crates"),
    ("getrandom", "proptest and tempfile"),
    ("hashbrown", "rusqlite and its cache"),
    ("nom", "rcgen, in a part that is not built"),
    ("num-bigint", "parquet; rcgen, in a part that is not built"),
    ("r-efi", "not built on Linux"),
    ("rusticata-macros", "rcgen, in a part that is not built"),
    ("syn", "procedural macros, at build time only"),
    ("synstructure", "rcgen, in a part that is not built"),
    ("thiserror", "netlink crates"),
    ("thiserror-impl", "netlink crates"),
    ("unicode-width", "miette"),
    ("windows-sys", "not built on Linux"),
    ("windows-targets", "not built on Linux"),
];

pub(crate) fn check() -> Result<Checked> {
    let metadata = metadata::read(true)?;
    let mut violations = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &metadata.packages {
        versions.entry(&package.name).or_default().push(&package.version);
        if !package.license.as_deref().is_some_and(is_allowed) {
            let licence = package.license.as_deref().unwrap_or("none");
            violations.push(format!("{} {}: licence `{licence}`", package.name, package.version));
        }
        if let Some((name, why)) = BANNED.iter().find(|(name, _)| *name == package.name) {
            violations.push(format!("{name} is not used here: {why}"));
        }
    }
    let twice = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let unreasoned = twice.filter(|(name, _)| !TWICE.iter().any(|(skipped, _)| skipped == *name));
    violations.extend(
        unreasoned.map(|(name, versions)| format!("{name} comes in versions {}", versions.join(", "))),
    );
    Ok(Checked { looked_at: format!("{} packages", metadata.packages.len()), violations })
}

/// An SPDX expression of our dependencies: alternatives joined by OR (or the old slash), parts of them by AND.
fn is_allowed(expression: &str) -> bool {
    let alternatives = expression.replace('/', " OR ");
    let all_parts = |alternative: &str| {
        alternative.split(" AND ").all(|part| ALLOWED.contains(&part.trim().trim_matches(['(', ')'])))
    };
    // "(A OR B) AND C" is read as A OR (B AND C): every licence of such an expression must be fine then.
    if alternatives.contains(") AND") || alternatives.contains("AND (") {
        return alternatives.replace(" AND ", " OR ").split(" OR ").all(all_parts);
    }
    alternatives.split(" OR ").any(all_parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        assert!(is_allowed("MIT OR Apache-2.0"));
        assert!(is_allowed("MIT/Apache-2.0"));
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
        assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!is_allowed("GPL-3.0"));
        assert!(!is_allowed("MIT AND EUPL-1.2"));
        assert!(!is_allowed("(MIT OR GPL-3.0) AND ISC"));
    }
}
