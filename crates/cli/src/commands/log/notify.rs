//! Telling a service manager how we are: a line to the socket that `NOTIFY_SOCKET` names (sd_notify(3)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says it, if anybody wants to hear it. Nothing hangs on being heard.
pub(super) fn say(line: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let name = name.to_string_lossy().into_owned();
    let sent = match name.strip_prefix('@') {
        Some(name) => {
            SocketAddr::from_abstract_name(name).and_then(|to| socket.send_to_addr(line.as_bytes(), &to))
        }
        None => socket.send_to(line.as_bytes(), &name),
    };
    drop(sent);
}
