//! Builds the server's configuration file from its setup.
//!
//! With [`BrokerSetup::security`], every connection needs a certificate of the authority, and claims that the fleet's
//! operator key has signed. Only what these claims name is allowed. The file names no node, so nodes can be added and
//! removed without a reload.
//!
//! All paths begin with the server's working directory (`/proc/self/cwd`), because its user may have no access to
//! the directories above it.

use super::accounts::accounts_directory;
use super::{BrokerSetup, TlsFiles};
use crate::authority::{Error, ServerAccounts};
use packetrig_sys::held_directory::WORKING_DIRECTORY;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Largest message that the server accepts, in bytes: a segment, its headers, and a reserve.
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Size in bytes at which the server begins a new log, and maximum number of logs, with the current one.
const LOG_BYTES: u64 = 4 << 20;
const MAX_LOG_FILES: u32 = 4;
/// Limit in bytes of the server's JetStream data in memory, which does not survive a restart.
const MEMORY_STORE_BYTES: u64 = 64 << 20;

/// The server's certificate, and the authority whose certificates it accepts. All files are PEM.
#[derive(Clone, Debug)]
pub struct ServerSecurity {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authority whose client certificates are accepted.
    pub authority: PathBuf,
    /// Signs the server's accounts, which state what these clients may do.
    pub accounts: ServerAccounts,
}

/// Path by which the server finds its configuration file from its working directory.
pub(super) fn configuration_path_for_server() -> PathBuf {
    super::configuration_file(Path::new(WORKING_DIRECTORY))
}

/// Builds the text of the configuration file.
pub fn build_configuration(setup: &BrokerSetup) -> Result<String, Error> {
    let setup = &BrokerSetup { directory: WORKING_DIRECTORY.into(), ..setup.clone() };
    let mut lines = vec![
        format!("server_name: {}", quote_string(&server_name(setup))),
        format!("listen: {}", quote_string(&setup.listen.to_string())),
        // A dead peer is noticed after two missed pings; the default takes four minutes.
        "ping_interval: \"2s\"\nping_max: 2".to_owned(),
        format!("max_payload: {MAX_PAYLOAD_BYTES}"),
        // Strangers and nodes decide how much is logged, so the log is bounded.
        format!("log_file: {}", quoted_path(&super::log_file(setup))),
        format!("logfile_size_limit: {LOG_BYTES}\nlogfile_max_num: {MAX_LOG_FILES}"),
        format!("jetstream {{\n  store_dir: {}", quoted_path(&setup.directory.join("store"))),
        format!("  max_file_store: {}\n  max_memory_store: {MEMORY_STORE_BYTES}", setup.store_room),
        // By default the server syncs its files to the disk only every two minutes.
        "  sync_interval: always\n}".to_owned(),
    ];
    if let Some(security) = &setup.security {
        let TlsFiles { certificate, key, authority } = TlsFiles::from_setup(setup);
        lines.push(format!("tls {{\n  cert_file: {}", quoted_path(&certificate)));
        lines.push(format!("  key_file: {}", quoted_path(&key)));
        lines.push(format!("  ca_file: {}", quoted_path(&authority)));
        // Clients without a certificate of the authority are refused before they can show claims.
        lines.push("  verify: true\n  timeout: 5\n}".to_owned());
        lines.extend(build_account_configuration_lines(setup, &security.accounts)?);
    }
    lines.push(String::new());
    Ok(lines.join("\n"))
}

/// Configuration lines: the trusted operator, the permanent accounts, and the directory of the nodes' accounts.
fn build_account_configuration_lines(
    setup: &BrokerSetup,
    accounts: &ServerAccounts,
) -> Result<[String; 7], Error> {
    let system = accounts.sign_system_account_claims()?;
    let control = accounts.sign_control_account_claims()?;
    let directory = quoted_path(&accounts_directory(setup));
    Ok([
        format!("operator: {}", quote_string(&accounts.sign_operator_token()?)),
        format!("system_account: {}", quote_string(&system.id)),
        // Without `allow_delete` the server would refuse requests on `ACCOUNT_REMOVAL_SUBJECT`, and removed
        // nodes would stay connected.
        format!("resolver: {{ type: full, dir: {directory}, allow_delete: true }}"),
        "resolver_preload: {".to_owned(),
        format!("  {}: {}", system.id, quote_string(&system.claims)),
        format!("  {}: {}", control.id, quote_string(&control.claims)),
        "}".to_owned(),
    ])
}

/// Name that distinguishes our server from any other at the same address.
pub(super) fn server_name(setup: &BrokerSetup) -> String {
    format!("packetrig-{}-{}", std::process::id(), setup.listen.port())
}

/// Address at which this machine reaches the server: loopback if the server listens on all addresses.
pub(super) fn reachable_address(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn quoted_path(path: &Path) -> String {
    quote_string(&path.to_string_lossy())
}

fn quote_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_configuration_syncs_disk_and_pings_peers() {
        let setup = BrokerSetup {
            program: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 4222)),
            directory: "/x".into(),
            store_room: 7,
            security: None,
            nodes: Vec::new(),
        };
        let text = build_configuration(&setup).expect("it has no keys");
        let store = "store_dir: \"/proc/self/cwd/store\"";
        for line in
            ["sync_interval: always", "ping_interval: \"2s\"", "ping_max: 2", "max_file_store: 7", store]
        {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("no_auth_user"));
    }
}
