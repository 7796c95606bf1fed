//! Ways between two programs that a test can cut: what is sent meanwhile is lost (UDP) or waits (TCP).

use packetrig_sys::clock;
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread looks whether it is over or cut.
const LOOK: Duration = Duration::from_millis(2);
/// Looks until connections must have ended.
const MAX_LOOKS: u32 = 30_000;

#[derive(Debug, Default)]
struct RelayState {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    /// No more connections are to come.
    is_ending: AtomicBool,
    passed: Mutex<Vec<(u64, usize)>>,
}

/// A way in one direction. It ends when it is dropped.
#[derive(Debug)]
pub struct Relay {
    place: SocketAddr,
    state: Arc<RelayState>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Passes datagrams on.
    pub fn udp(to: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a port");
        socket.set_read_timeout(Some(LOOK)).expect("a limit can be set");
        let place = socket.local_addr().expect("it is bound");
        Self::start(place, move |state| {
            let mut datagram = [0; 2048];
            while !state.is_over() {
                let Ok(length) = socket.recv(&mut datagram) else { continue };
                if !state.is_cut() {
                    // Nobody may listen there yet.
                    drop(socket.send_to(&datagram[..length], to));
                }
            }
        })
    }

    /// Passes connections on.
    pub fn tcp(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        // Little room: what a sender hands over while the way is cut stays with the sender.
        sockopt::set_socket_recv_buffer_size(&listener, 4096).expect("a limit can be set");
        listener.set_nonblocking(true).expect("it need not wait");
        let place = listener.local_addr().expect("it is bound");
        Self::start(place, move |state| {
            let mut connections = Vec::new();
            while !state.is_over() {
                match listener.accept() {
                    Ok((near, _)) if !state.is_cut() => {
                        let state = Arc::clone(state);
                        connections.push(std::thread::spawn(move || connect(&near, to, &state)));
                    }
                    Err(_) if state.is_ending() => break,
                    _ => std::thread::sleep(LOOK),
                }
            }
            for connection in connections {
                connection.join().expect("it does not panic");
            }
        })
    }

    fn start(place: SocketAddr, work: impl FnOnce(&Arc<RelayState>) + Send + 'static) -> Self {
        let state = Arc::<RelayState>::default();
        let of_thread = Arc::clone(&state);
        Self { place, state, thread: Some(std::thread::spawn(move || work(&of_thread))) }
    }

    /// Where it listens.
    pub const fn place(&self) -> SocketAddr {
        self.place
    }

    /// When bytes of connections were passed on, nanoseconds since 1970, and how many.
    pub fn passed(&self) -> Vec<(u64, usize)> {
        self.state.passed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Release);
    }

    /// Ends a way for connections, which is not cut, once both ends of each have closed it: all that was sent has arrived.
    pub fn drain(self) {
        self.state.is_ending.store(true, Ordering::Release);
        let has_ended = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let is_drained = (0..MAX_LOOKS).any(|_| {
            std::thread::sleep(LOOK);
            has_ended()
        });
        assert!(is_drained, "connections over {} never end", self.place);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl RelayState {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }
}

fn connect(near: &TcpStream, to: SocketAddr, state: &RelayState) {
    let Ok(far) = TcpStream::connect(to) else { return };
    let note = |length| {
        let mut passed = state.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.push((clock::wall_clock_ns(), length));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pass(near, &far, state, note));
        pass(&far, near, state, |_| {});
    });
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, state: &RelayState, note: impl Fn(usize)) {
    from.set_nonblocking(false).expect("it can wait");
    from.set_read_timeout(Some(LOOK)).expect("a limit can be set");
    let mut bytes = [0; 2048];
    while !state.is_over() {
        if state.is_cut() {
            // Nothing is read, so the sender's kernel finds out that nothing is taken.
            std::thread::sleep(LOOK);
            continue;
        }
        match from.read(&mut bytes) {
            Ok(length) if length > 0 && to.write_all(&bytes[..length]).is_ok() => note(length),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    drop(to.shutdown(std::net::Shutdown::Write));
}
