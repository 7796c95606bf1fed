//! Notifies a service manager, such as systemd, of the state of this process: sends a line to the socket
//! that `NOTIFY_SOCKET` names (sd_notify(3)).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends the line to the service manager. Does nothing without a service manager (`NOTIFY_SOCKET` is not set).
pub(super) fn notify_manager(line: &str) {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
        send_to_manager(&name, line);
    }
}

fn send_to_manager(name: &OsStr, line: &str) {
    // Errors are ignored as sd_notify(3) advises: a program must work the same without a service manager.
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let name = name.to_string_lossy().into_owned();
    // sd_notify(3): a name that begins with `@` is in the abstract namespace.
    let sent = match name.strip_prefix('@') {
        Some(name) => {
            SocketAddr::from_abstract_name(name).and_then(|to| socket.send_to_addr(line.as_bytes(), &to))
        }
        None => socket.send_to(line.as_bytes(), &name),
    };
    drop(sent);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive_line(socket: &UnixDatagram) -> Vec<u8> {
        let mut line = vec![0; 64];
        let length = socket.recv(&mut line).unwrap();
        line.truncate(length);
        line
    }

    #[test]
    fn notify_socket_may_be_path_or_abstract() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send_to_manager(path.as_os_str(), "READY=1");
        assert_eq!(receive_line(&socket), b"READY=1");
        let name = format!("packetrig-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send_to_manager(OsStr::new(&format!("@{name}")), "STOPPING=1");
        assert_eq!(receive_line(&socket), b"STOPPING=1");
        send_to_manager(OsStr::new("/no/such/socket"), "READY=1");
    }
}
