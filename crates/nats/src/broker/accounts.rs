//! Account files of nodes. A file is written when its node is admitted, and the server deletes it when
//! the node is removed.
//!
//! Invariant: an existing file is complete.

use super::{BrokerSetup, Error, server_io_error, system};
use crate::authority::{ACCOUNT_REMOVAL_SUBJECT, AccountClaims, AdmittedNode, ServerAccounts};
use crate::connection::FleetCredentials;
use crate::subject;
use packetrig_sys::private_files;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

pub(super) fn accounts_directory(setup: &BrokerSetup) -> PathBuf {
    setup.directory.join("accounts")
}

fn account_path(setup: &BrokerSetup, id: &str) -> PathBuf {
    accounts_directory(setup).join(format!("{id}.jwt"))
}

/// Writes the account file of a node, which the server reads when the node connects. Does nothing if the file
/// exists, or without `setup.security`.
pub(super) fn add_node_account(setup: &BrokerSetup, node: &AdmittedNode) -> Result<(), Error> {
    if !subject::is_node_name(&node.name.0) {
        return Err(Error::Name(node.name.0.clone()));
    }
    let Some(security) = &setup.security else { return Ok(()) };
    // An existing file is complete, and the same node always gets the same claims.
    if account_path(setup, &security.accounts.account_id(node)?).exists() {
        return Ok(());
    }
    let AccountClaims { id, claims } = security.accounts.sign_node_account_claims(node)?;
    let file = account_path(setup, &id);
    private_files::replace_file(&file, claims).map_err(server_io_error(file.display().to_string()))
}

/// Writes the missing account files of `nodes`. Returns the IDs of the accounts in the directory that belong to
/// none of these nodes.
pub(super) fn write_missing_accounts(
    setup: &BrokerSetup,
    nodes: &[AdmittedNode],
) -> Result<Vec<String>, Error> {
    let Some(security) = &setup.security else { return Ok(Vec::new()) };
    let directory = accounts_directory(setup);
    let shown = directory.display().to_string();
    private_files::create_directories(&directory).map_err(server_io_error(&shown))?;
    // The server writes files for its preloaded accounts as well.
    let mut wanted = BTreeSet::from([
        security.accounts.sign_system_account_claims()?.id,
        security.accounts.sign_control_account_claims()?.id,
    ]);
    for node in nodes {
        add_node_account(setup, node)?;
        wanted.insert(security.accounts.account_id(node)?);
    }
    let mut left = Vec::new();
    for entry in fs::read_dir(&directory).map_err(server_io_error(&shown))? {
        let name = entry.map_err(server_io_error(&shown))?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".jwt"));
        left.extend(id.filter(|id| !wanted.contains(*id)).map(str::to_owned));
    }
    Ok(left)
}

/// Deletes account files. The server must be (re)started afterwards: a running one may still have them in memory.
pub(super) fn delete_account_files(setup: &BrokerSetup, accounts: &[String]) -> Result<(), Error> {
    for id in accounts {
        let file = account_path(setup, id);
        match fs::remove_file(&file) {
            // The server has removed it already.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            done => done.map_err(server_io_error(file.display().to_string()))?,
        }
    }
    Ok(())
}

/// Makes the server disconnect the users of these accounts and delete the accounts.
pub(super) fn remove_accounts(
    setup: &BrokerSetup,
    accounts: &ServerAccounts,
    ids: &[String],
    as_whom: &FleetCredentials,
) -> Result<(), Error> {
    let order = accounts.sign_removal_order(ids)?;
    let answered = system::query_server(setup, as_whom, ACCOUNT_REMOVAL_SUBJECT, order)
        .and_then(|said| if said["data"]["code"] == 200 { Ok(()) } else { Err(said.to_string()) });
    answered.map_err(|why| Error::NotReady(format!("it did not remove the accounts of nodes: {why}")))
}
