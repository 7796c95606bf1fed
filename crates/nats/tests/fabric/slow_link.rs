//! A slow link to the server: every connection through it gets a fixed number of bytes per second.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that are forwarded at a time.
const PIECE: u32 = 16 << 10;
const LOOK: Duration = Duration::from_millis(5);

pub(crate) struct SlowLink {
    pub(crate) address: SocketAddr,
    over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl SlowLink {
    pub(crate) fn to(server: SocketAddr, bytes_per_second: u64) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("bound");
        socket.set_nonblocking(true).expect("it can");
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let pause = Duration::from_secs(PIECE.into()) / u32::try_from(bytes_per_second).expect("slow");
        let listener = std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                match socket.accept() {
                    Ok((near, _)) => carry_both_ways(near, server, pause),
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        });
        Self { address, over, listener: Some(listener) }
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(listener) = self.listener.take() {
            listener.join().unwrap_or(());
        }
    }
}

/// Forwards until either side ends; the threads end with the connection.
fn carry_both_ways(near: TcpStream, server: SocketAddr, pause: Duration) {
    near.set_nonblocking(false).expect("it can");
    let far = TcpStream::connect(server).expect("the server is there");
    let up = (near.try_clone().expect("a copy"), far.try_clone().expect("a copy"));
    std::thread::spawn(move || carry(up.0, up.1, Duration::ZERO));
    std::thread::spawn(move || carry(far, near, pause));
}

fn carry(mut from: TcpStream, mut to: TcpStream, pause: Duration) {
    let mut piece = [0; PIECE as usize];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
        // A short piece takes a proportionally short time.
        std::thread::sleep(pause * u32::try_from(length).expect("short") / PIECE);
    }
    for end in [from, to] {
        end.shutdown(std::net::Shutdown::Both).unwrap_or(());
    }
}
