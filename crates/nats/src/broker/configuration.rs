//! The server's configuration file: a pure function of what it shall be.
//!
//! Everything is denied that is not allowed here by name; nobody is let in without a certificate of the authority.

use super::Setup;
use crate::authority::AdmittedNode;
use crate::subject;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Largest message: a segment, its headers, and room.
const PAYLOAD: usize = 1 << 20;
/// The account with the streams and the records.
const CONTROL: &str = "CONTROL";
/// Bytes of a log before the next one is begun, and logs that are kept.
const LOG_BYTES: u64 = 4 << 20;
const LOG_FILES: u32 = 4;
/// Memory for what the server keeps only while it runs.
const MEMORY: u64 = 64 << 20;

/// The server's certificate and whose certificates it takes. All files are PEM.
#[derive(Clone, Debug)]
pub struct Security {
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority whose certificates are let in.
    pub authority: PathBuf,
}

/// The configuration as text.
pub fn configuration(setup: &Setup) -> String {
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
            "tls {{\n  cert_file: {}\n  key_file: {}\n  ca_file: {}\n  verify_and_map: true\n  timeout: 5\n}}",
            file(&security.certificate),
            file(&security.key),
            file(&security.authority)
        ));
        line(format_args!("accounts {{\n{}", account_of_the_controller()));
        for node in &setup.nodes {
            line(format_args!("{}", account_of(node)));
        }
        line(format_args!("}}"));
    }
    text
}

/// The controller's account: it alone has streams and records, and it exports what goes to nodes and comes from them.
fn account_of_the_controller() -> String {
    let to_nodes = [subject::TO_ALL.to_owned(), subject::to_node("*")];
    let to_nodes = to_nodes.map(|at| format!("{{ stream: {} }}", quoted(&at)));
    let from_nodes = subject::from_node("*").map(|at| format!("{{ service: {} }}", quoted(&at)));
    let exports: Vec<String> = to_nodes.into_iter().chain(from_nodes).collect();
    let user = user("controller", subject::permissions_of_the_controller());
    format!("  {CONTROL} {{\n    jetstream: enabled\n{user}\n    exports: [{}]\n  }}", exports.join(", "))
}

/// A node has an account of its own.
///
/// The server itself publishes confirmations at whatever subject the one that appended a segment wrote into it, without
/// regard to the rights of that one. In an account with nothing but the node's own subjects this reaches nobody else.
fn account_of(node: &AdmittedNode) -> String {
    let common_name = node.common_name();
    let node = &node.name;
    let import =
        |kind: &str, at: &String| format!("{{ {kind}: {{ account: {CONTROL}, subject: {} }} }}", quoted(at));
    let to_node = [subject::TO_ALL.to_owned(), subject::to_node(&node.0)];
    let from_node = subject::from_node(&node.0);
    let streams = to_node.iter().map(|at| import("stream", at));
    let imports: Vec<String> = streams.chain(from_node.iter().map(|at| import("service", at))).collect();
    let user = user(&common_name, subject::permissions(&node.0));
    format!("  NODE_{node} {{\n{user}\n    imports: [{}]\n  }}", imports.join(", "))
}

/// The one user of an account, known by its certificate.
fn user(name: &str, (publish, subscribe): (Vec<String>, Vec<String>)) -> String {
    let list = |subjects: &[String]| subjects.iter().map(|at| quoted(at)).collect::<Vec<_>>().join(", ");
    format!(
        "    users: [\n      {{ user: {}, permissions: {{ publish: {{ allow: [{}] }}, subscribe: {{ allow: [{}] }} }} }}\n    ]",
        quoted(&format!("CN={name}")),
        list(&publish),
        list(&subscribe)
    )
}

/// Tells our server from any other at the same address.
pub(super) fn server_name(setup: &Setup) -> String {
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
    use packetrig_fleet::message::NodeName;

    fn setup(security: Option<Security>) -> Setup {
        Setup {
            program: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 4222)),
            directory: "/x".into(),
            store_room: 7,
            security,
            nodes: vec![AdmittedNode { name: NodeName("a".into()), generation: "7f".into() }],
        }
    }

    #[test]
    fn the_disk_is_synced_and_dead_peers_are_noticed() {
        let text = configuration(&setup(None));
        for line in ["sync_interval: always", "ping_interval: \"2s\"", "ping_max: 2", "max_file_store: 7"] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!text.contains("no_auth_user"));
    }

    #[test]
    fn a_node_may_use_its_own_subjects_only() {
        let file = PathBuf::from("/f");
        let security = Security { certificate: file.clone(), key: file.clone(), authority: file };
        let text = configuration(&setup(Some(security)));
        assert!(text.contains("verify_and_map: true"));
        let line = text.lines().find(|line| line.contains("CN=a.7f\"")).expect("the node is there");
        let words: Vec<&str> = line.split('"').skip(3).step_by(2).collect();
        for word in &words {
            assert!(
                *word == "cmd.all" || *word == "_INBOX_a.>" || word.split('.').next_back() == Some("a"),
                "{word} is not of the node"
            );
        }
        assert_eq!(words.len(), 11, "{words:?}");
    }
}
