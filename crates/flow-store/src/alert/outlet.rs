//! Delivers events as lines of JSON to standard output, a file or a webhook. Events that cannot be delivered wait for
//! another attempt; if too many wait, the oldest are lost.

use crate::Error;
use crate::http::{HttpRequest, post_request};
use crate::retry_timer::RetryTimer;
use packetrig_sys::private_files;
use packetrig_units::MonoTime;
use packetrig_units::text::one_line;
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(5);
const HTTP_PORT: u16 = 80;
/// Maximum number of events that wait for one destination. If another event comes, the oldest one is lost.
const MAX_WAITING_EVENTS: usize = 4096;
/// Maximum number of characters of a webhook's answer that an error message quotes.
const MAX_SHOWN_ANSWER_CHARACTERS: usize = 300;

/// Where events are delivered. Users write `-` for standard output, `http://HOST:PORT/PATH` for a webhook, or the
/// name of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlertDestination {
    StandardOutput,
    File(PathBuf),
    Webhook {
        /// `host` or `host:port`.
        address: String,
        /// Path and query.
        path: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAlertDestination {
    #[error("give a file name, - for standard output, or http://HOST:PORT/PATH")]
    Syntax,
    #[error("https:// is not supported; give a file name, or the http:// address of a relay on this machine")]
    Encrypted,
}

impl FromStr for AlertDestination {
    type Err = InvalidAlertDestination;

    fn from_str(text: &str) -> Result<Self, InvalidAlertDestination> {
        match text.split_once("://") {
            None if text == "-" => Ok(Self::StandardOutput),
            None if text.is_empty() => Err(InvalidAlertDestination::Syntax),
            None => Ok(Self::File(text.into())),
            Some(("http", rest)) => {
                let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                // Address and path become part of the HTTP header, where a line break or a blank
                // would change the request.
                let is_plain = !rest.contains(|c: char| c.is_control() || c.is_whitespace());
                if address.is_empty() || address.contains('@') || !is_plain {
                    return Err(InvalidAlertDestination::Syntax);
                }
                let path = if path.is_empty() { "/" } else { path };
                Ok(Self::Webhook { address: address.to_owned(), path: path.to_owned() })
            }
            Some(("https", _)) => Err(InvalidAlertDestination::Encrypted),
            Some(_) => Err(InvalidAlertDestination::Syntax),
        }
    }
}

impl fmt::Display for AlertDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardOutput => f.write_str("standard output"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Webhook { address, path } => write!(f, "http://{address}{path}"),
        }
    }
}

/// Delivers events to one destination.
#[derive(Debug)]
pub(super) struct AlertDelivery {
    place: AlertDestination,
    file: Option<File>,
    /// Lines that are not delivered yet.
    waiting: VecDeque<String>,
    retry: RetryTimer,
    pub(super) delivered: u64,
    /// Events that were dropped because too many were waiting.
    pub(super) lost: u64,
}

impl AlertDelivery {
    pub(super) fn open_alert_destination(place: AlertDestination) -> Result<Self, Error> {
        let file = match &place {
            AlertDestination::File(path) => {
                Some(private_files::open_to_append(path).map_err(Error::file("write", path))?)
            }
            AlertDestination::StandardOutput | AlertDestination::Webhook { .. } => None,
        };
        Ok(Self {
            place,
            file,
            waiting: VecDeque::new(),
            retry: RetryTimer::default(),
            delivered: 0,
            lost: 0,
        })
    }

    pub(super) fn add_line(&mut self, line: &str) {
        if self.waiting.len() == MAX_WAITING_EVENTS {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(line.to_owned());
    }

    pub(super) fn waiting_event_count(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Delivers the waiting events in order. Stops at the first failure: the event stays in the queue, and calls before
    /// the next retry do nothing. Without a time (`now`) a retry is always due.
    pub(super) fn deliver_events(&mut self, now: Option<MonoTime>) -> Result<(), Error> {
        while !self.waiting.is_empty() && self.retry.is_due(now) {
            let done = self.deliver_first();
            self.retry.schedule_after_attempt(done.is_ok(), now);
            done?;
            self.waiting.pop_front();
            self.delivered += 1;
        }
        Ok(())
    }

    fn deliver_first(&mut self) -> Result<(), Error> {
        let line = &self.waiting[0];
        match (&self.place, &mut self.file) {
            (AlertDestination::Webhook { address, path }, _) => post_event(address, path, line),
            // One write, so that lines of several programs do not mix.
            (AlertDestination::File(path), Some(file)) => {
                file.write_all(format!("{line}\n").as_bytes()).map_err(Error::file("write", path))
            }
            (AlertDestination::StandardOutput | AlertDestination::File(_), _) => {
                let mut output = io::stdout().lock();
                let written = output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush());
                written.map_err(Error::network("standard output"))
            }
        }
    }
}

fn post_event(address: &str, path: &str, line: &str) -> Result<(), Error> {
    let peer = format!("webhook http://{address}{path}");
    let headers = [("Content-Type", "application/json")];
    let request = HttpRequest { address, path, headers: &headers, body: line.as_bytes() };
    let answer = post_request(&request, HTTP_PORT, WEBHOOK_TIMEOUT).map_err(Error::network(&peer))?;
    match answer.status {
        Some(200..=299) => Ok(()),
        Some(status) => {
            let shown = one_line(answer.body.trim(), MAX_SHOWN_ANSWER_CHARACTERS);
            Err(Error::Refused {
                peer,
                said: format!("the server answered with HTTP status {status}: {shown}"),
            })
        }
        None => Err(Error::Refused {
            peer,
            said: "the answer is not HTTP; check the host and port of the webhook".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn alert_places_are_read_as_written() {
        for text in ["alerts.jsonl", "http://127.0.0.1:8080/hook?a=b"] {
            assert_eq!(text.parse::<AlertDestination>().unwrap().to_string(), text);
        }
        assert_eq!("-".parse(), Ok(AlertDestination::StandardOutput));
        assert_eq!("http://host".parse::<AlertDestination>().unwrap().to_string(), "http://host/");
        for text in ["", "http://", "http:///x", "http://a/b\r\nc", "http://me@a/b", "kafka://a/b"] {
            assert_eq!(text.parse::<AlertDestination>(), Err(InvalidAlertDestination::Syntax), "{text}");
        }
        assert_eq!("https://a/b".parse::<AlertDestination>(), Err(InvalidAlertDestination::Encrypted));
    }

    /// Answers requests one after another, and returns the requests.
    fn answer_requests(
        listener: TcpListener,
        statuses: &'static [&'static str],
    ) -> std::thread::JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let answer = |status: &&str| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut part = [0; 4096];
                while !request.ends_with(b"}") {
                    let length = stream.read(&mut part).unwrap();
                    request.extend_from_slice(&part[..length]);
                }
                write!(stream, "HTTP/1.1 {status}\r\n\r\nbusy").unwrap();
                String::from_utf8(request).unwrap()
            };
            statuses.iter().map(answer).collect()
        })
    }

    #[test]
    fn refused_event_is_posted_again_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = answer_requests(listener, &["503 Busy", "200 OK", "204 No Content"]);
        let mut outlet =
            AlertDelivery::open_alert_destination(format!("http://{address}/hook").parse().unwrap()).unwrap();
        outlet.add_line("{\"n\":1}");
        outlet.add_line("{\"n\":2}");
        let now = |seconds: u64| Some(MonoTime::from_nanos(seconds * 1_000_000_000));
        let said = outlet.deliver_events(now(10)).unwrap_err().to_string();
        assert!(said.contains("503: busy") && said.contains("/hook"), "{said}");
        outlet.deliver_events(now(10)).unwrap();
        assert_eq!((outlet.waiting_event_count(), outlet.delivered), (2, 0), "not tried again at once");
        outlet.deliver_events(now(12)).unwrap();
        assert_eq!((outlet.waiting_event_count(), outlet.delivered), (0, 2));
        let requests = server.join().unwrap();
        assert!(requests[0].starts_with("POST /hook HTTP/1.0\r\n"), "{requests:?}");
        let bodies: Vec<_> = requests.iter().map(|request| &request[request.len() - 7..]).collect();
        assert_eq!(bodies, ["{\"n\":1}", "{\"n\":1}", "{\"n\":2}"]);
    }

    #[test]
    fn waiting_events_are_bounded_and_lost_ones_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("alerts.jsonl");
        let mut outlet = AlertDelivery::open_alert_destination(AlertDestination::File(path.clone())).unwrap();
        for number in 0..MAX_WAITING_EVENTS + 3 {
            outlet.add_line(&number.to_string());
        }
        outlet.deliver_events(None).unwrap();
        assert_eq!((outlet.lost, outlet.delivered), (3, MAX_WAITING_EVENTS as u64));
        assert!(std::fs::read_to_string(path).unwrap().starts_with("3\n4\n"));
    }
}
