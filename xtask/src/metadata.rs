//! Reads cargo's metadata of the workspace.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::process::Command;

#[derive(Debug, Deserialize)]
pub(crate) struct CargoMetadata {
    pub(crate) packages: Vec<CargoPackage>,
    pub(crate) workspace_members: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CargoPackage {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) manifest_path: String,
    pub(crate) dependencies: Vec<CargoDependency>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CargoDependency {
    pub(crate) name: String,
    /// `dev`, `build`, or nothing for an ordinary one.
    pub(crate) kind: Option<String>,
}

impl CargoMetadata {
    /// Packages of the workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = &CargoPackage> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}

/// The workspace's own packages.
pub(crate) fn read() -> Result<CargoMetadata> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--no-deps"]);
    let output = command.output().context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata is not as expected")
}
