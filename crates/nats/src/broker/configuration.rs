//! The server's configuration file: a pure function of what it shall be.
//!
//! Every connection needs a certificate of the authority and claims that the fleet's operator key has signed; everything is
//! denied that these do not allow by name. No node is named here, so that nodes come and go without a reload.

use super::BrokerSetup;
use super::accounts::accounts_directory;
use crate::authority::{Error, ServerAccounts};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Largest message: a segment, its headers, and room.
const PAYLOAD: usize = 1 << 20;
/// Bytes of a log before the next one is begun, and logs that are kept.
const LOG_BYTES: u64 = 4 << 20;
const LOG_FILES: u32 = 4;
/// Memory for what the server keeps only while it runs.
const MEMORY: u64 = 64 << 20;

/// The server's certificate and whose certificates it takes. All files are PEM.
#[derive(Clone, Debug)]
pub struct ServerSecurity {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority whose certificates are let in.
    pub authority: PathBuf,
    /// What they may do.
    pub accounts: ServerAccounts,
}

/// The configuration as text.
pub fn configuration(setup: &BrokerSetup) -> Result<String, Error> {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| writeln!(text, "{words}").unwrap_or(());
    line(format_args!("server_name: {}", quoted(&server_name(setup))));
    line(format_args!("listen: {}", quoted(&setup.listen.to_string())));
    // A dead peer is noticed after two of these; the default is four minutes.
    line(format_args!("ping_interval: \"2s\"\nping_max: 2"));
    line(format_args!("max_payload: {PAYLOAD}"));
    // Strangers and nodes decide how much is logged.
    line(format_args!(
        "log_file: {}\nlogfile_size_limit: {LOG_BYTES}\nlogfile_max_num: {LOG_FILES}",
        file(&super::log_file(setup))
    ));
    // The default writes to disk every two minutes.
    line(format_args!(
        "jetstream {{\n  store_dir: {}\n  max_file_store: {}\n  max_memory_store: {MEMORY}\n  sync_interval: always\n}}",
        file(&setup.directory.join("store")),
        setup.store_room
    ));
    if let Some(security) = &setup.security {
        line(format_args!(
            // Without a certificate of the authority nobody gets as far as showing claims.
            "tls {{\n  cert_file: {}\n  key_file: {}\n  ca_file: {}\n  verify: true\n  timeout: 5\n}}",
            file(&security.certificate),
            file(&security.key),
            file(&security.authority)
        ));
        write_accounts(&mut text, setup, &security.accounts)?;
    }
    Ok(text)
}

/// Whose signature is believed, the accounts that are always there, and where those of nodes are found.
fn write_accounts(text: &mut String, setup: &BrokerSetup, accounts: &ServerAccounts) -> Result<(), Error> {
    let system = accounts.system_account()?;
    let control = accounts.control_account()?;
    let directory = file(&accounts_directory(setup));
    let lines = [
        format!("operator: {}", quoted(&accounts.operator()?)),
        format!("system_account: {}", quoted(&system.id)),
        // Without `allow_delete` the server would not obey `REMOVE_ACCOUNTS`, which cuts removed nodes off.
        format!("resolver: {{ type: full, dir: {directory}, allow_delete: true }}"),
        "resolver_preload: {".to_owned(),
        format!("  {}: {}", system.id, quoted(&system.claims)),
        format!("  {}: {}", control.id, quoted(&control.claims)),
        "}\n".to_owned(),
    ];
    text.push_str(&lines.join("\n"));
    Ok(())
}

/// Tells our server from any other at the same address.
pub(super) fn server_name(setup: &BrokerSetup) -> String {
    format!("packetrig-{}-{}", std::process::id(), setup.listen.port())
}

/// Where a server that listens everywhere is reached from here.
pub(super) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn file(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_synced_and_dead_peers_are_noticed() {
        let setup = BrokerSetup {
            program: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 4222)),
            directory: "/x".into(),
            store_room: 7,
            security: None,
            nodes: Vec::new(),
        };
        let text = configuration(&setup).expect("it has no keys");
        for line in ["sync_interval: always", "ping_interval: \"2s\"", "ping_max: 2", "max_file_store: 7"] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("no_auth_user"));
    }
}
