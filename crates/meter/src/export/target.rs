//! Where records go, as a user writes it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A collector or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportTarget {
    /// Datagrams to a host and port.
    Udp(HostPort),
    Tcp(HostPort),
    /// A TCP connection with TLS.
    Tls(HostPort),
    /// A file, begun anew.
    File(PathBuf),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address, of IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

/// A target that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "export target `{text}`: {problem}; write udp://198.18.0.1:4739, tcp://[2001:2::1]:4739, tls://name:4740 or file:PATH"
)]
pub struct TargetError {
    text: String,
    problem: &'static str,
}

impl ExportTarget {
    /// Whether it takes messages one after the other without saying where they end.
    pub const fn is_stream(&self) -> bool {
        !matches!(self, Self::Udp(_))
    }
}

impl FromStr for ExportTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let place = |make: fn(HostPort) -> Self, rest: &str| rest.parse().map(make);
        let read = match text.split_once("://") {
            Some(("udp", rest)) => place(Self::Udp, rest),
            Some(("tcp", rest)) => place(Self::Tcp, rest),
            Some(("tls", rest)) => place(Self::Tls, rest),
            Some(_) => Err("the transport is not known"),
            None => file(text),
        };
        read.map_err(|problem| TargetError { text: text.to_owned(), problem })
    }
}

/// `file:PATH`, or what can only be a path.
fn file(text: &str) -> Result<ExportTarget, &'static str> {
    let path = match text.strip_prefix("file:") {
        Some(path) => path,
        None if text.contains('/') => text,
        None => return Err("neither a transport nor a path"),
    };
    match path {
        "" => Err("the path is missing"),
        path if path.ends_with('/') => Err("this is a directory"),
        path => Ok(ExportTarget::File(PathBuf::from(path))),
    }
}

impl FromStr for HostPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("the bracket of the address is not closed")?,
            None => text.rsplit_once(':').map_or((text, ""), |(host, _)| text.split_at(host.len())),
        };
        if host.contains(':') && !text.starts_with('[') {
            return Err("an IPv6 address stands in brackets");
        }
        if host.is_empty() {
            return Err("the host is missing");
        }
        let port = port.strip_prefix(':').ok_or("the port is missing")?;
        match port.parse() {
            Ok(0) | Err(_) => Err("the port is not a number from 1 to 65535"),
            Ok(port) => Ok(Self { host: host.to_owned(), port }),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for ExportTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(place) => write!(f, "udp://{place}"),
            Self::Tcp(place) => write!(f, "tcp://{place}"),
            Self::Tls(place) => write!(f, "tls://{place}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let texts = [
            "udp://198.18.0.1:4739",
            "tcp://[2001:2::1]:4739",
            "tls://collector.example:4740",
            "file:a.ipfix",
        ];
        for text in texts {
            assert_eq!(text.parse::<ExportTarget>().unwrap().to_string(), text);
        }
        let file = ExportTarget::File(PathBuf::from("/tmp/a"));
        assert_eq!("/tmp/a".parse::<ExportTarget>().unwrap(), file);
        assert_eq!("file:/tmp/a".parse::<ExportTarget>().unwrap(), file);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        for (text, reason) in [
            ("udp://198.18.0.1", "port is missing"),
            ("udp://198.18.0.1:0", "1 to 65535"),
            ("udp://198.18.0.1:70000", "1 to 65535"),
            ("udp://:4739", "host is missing"),
            ("udp://2001:2::1:4739", "in brackets"),
            ("udp://[2001:2::1:4739", "not closed"),
            ("udp://[2001:2::1]", "port is missing"),
            ("sctp://198.18.0.1:4739", "transport is not known"),
            ("collector", "neither a transport nor a path"),
            ("file:", "path is missing"),
            ("/tmp/", "directory"),
        ] {
            let error = text.parse::<ExportTarget>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{text}: {error}");
        }
    }
}
