//! The screen of `packetrig watch` for the run or test of this process, as in `packetrig run --watch`.

use super::follow::ServerLifetime;
use super::{has_screen, show_screen};
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::output::{TextStyle, print_remark};
use packetrig_server::client::{ApiClient, CertificateTrust};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The screen, on a separate thread. Closing it restores the terminal.
#[derive(Debug)]
pub(crate) struct ScreenThread {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Error>>,
}

impl ScreenThread {
    /// Returns an error if the terminal cannot show a screen. Called before a run, so that a run does not fail for it.
    pub(crate) fn check_terminal() -> Result<(), Error> {
        if has_screen() {
            return Ok(());
        }
        Err(Error::Usage(
            "--watch needs a terminal; `packetrig watch --lines` shows a run in progress as lines".into(),
        ))
    }

    /// Opens the screen, which follows the server of this process at `address`; `None` means that this server could not
    /// start. `what` is the word for the work in messages, such as `run` or `test`.
    pub(crate) fn open(address: Option<SocketAddr>, what: &'static str) -> Result<Self, Error> {
        let nowhere = || {
            Error::Usage(
                "--watch could not start its own server; is the loopback interface up (`ip link set lo up`)?"
                    .into(),
            )
        };
        let client =
            ApiClient::new(address.ok_or_else(nowhere)?.into(), None, &CertificateTrust::ThisMachine)?;
        let server = client.get("/api/v1/state")?;
        let is_over = Arc::<AtomicBool>::default();
        let is_coloured = TextStyle::for_remarks().is_coloured();
        let ending = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let is_over = || ending.load(Ordering::Acquire) || is_interrupted();
            let shown = show_screen(client, &server, ServerLifetime::OfRun, is_coloured, &is_over);
            if !is_over() {
                print_remark(format_args!(
                    "{what}: the {what} goes on; Ctrl-C ends it, and `packetrig watch` shows it again"
                ));
            }
            shown
        });
        Ok(Self { is_over, thread })
    }

    /// Closes the screen, if the user has not closed it. Returns the error of the screen, if it failed.
    pub(crate) fn close(self) -> Result<(), Error> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
