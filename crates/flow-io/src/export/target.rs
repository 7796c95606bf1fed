//! Export targets, as users write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A collector or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportTarget {
    Udp(HostPort),
    Tcp(HostPort),
    Tls(HostPort),
    /// A file, which is overwritten if it exists.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address; IPv6 addresses without brackets.
    pub host: String,
    pub port: u16,
}

/// The text is not an export target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "export target `{text}`: {problem}; write udp://198.18.0.1:4739, tcp://[2001:2::1]:4739, tls://name:4740 or file:PATH"
)]
pub struct TargetError {
    text: String,
    problem: &'static str,
}

impl ExportTarget {
    /// Reports whether the target takes a byte stream, which does not mark where messages end.
    pub const fn is_stream(&self) -> bool {
        !matches!(self, Self::Udp(_))
    }
}

impl FromStr for ExportTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let read = match text.split_once("://") {
            Some(("udp", rest)) => rest.parse().map(Self::Udp),
            Some(("tcp", rest)) => rest.parse().map(Self::Tcp),
            Some(("tls", rest)) => rest.parse().map(Self::Tls),
            Some(_) => Err("the transport is unknown"),
            None => parse_file_target(text),
        };
        read.map_err(|problem| TargetError { text: text.to_owned(), problem })
    }
}

/// Reads `file:PATH`, or a text with a slash, which can only be a path.
fn parse_file_target(text: &str) -> Result<ExportTarget, &'static str> {
    let path = match text.strip_prefix("file:") {
        Some(path) => path,
        None if text.contains('/') => text,
        None => return Err("it has neither a transport nor a path"),
    };
    match path {
        "" => Err("the path is missing"),
        path if path.ends_with('/') => Err("the path is a directory"),
        path => Ok(ExportTarget::File(PathBuf::from(path))),
    }
}

impl FromStr for HostPort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or("the bracket of the address is not closed")?;
            return parse_host_and_port(host, port.strip_prefix(':'));
        }
        match text.rsplit_once(':') {
            // `2001:2::1` could be an address without a port, or end in a port.
            Some((host, _)) if host.contains(':') => Err("an IPv6 address must be in brackets"),
            Some((host, port)) => parse_host_and_port(host, Some(port)),
            None => parse_host_and_port(text, None),
        }
    }
}

fn parse_host_and_port(host: &str, port: Option<&str>) -> Result<HostPort, &'static str> {
    if host.is_empty() {
        return Err("the host is missing");
    }
    match port.ok_or("the port is missing")?.parse() {
        // Port 0 is not valid for a destination.
        Ok(0) | Err(_) => Err("the port is not a number from 1 to 65535"),
        Ok(port) => Ok(HostPort { host: host.to_owned(), port }),
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
    fn export_target_round_trips_as_text() {
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
    fn invalid_export_target_is_refused_with_reason() {
        for (text, reason) in [
            ("udp://198.18.0.1", "port is missing"),
            ("udp://198.18.0.1:0", "1 to 65535"),
            ("udp://198.18.0.1:70000", "1 to 65535"),
            ("udp://:4739", "host is missing"),
            ("udp://2001:2::1:4739", "in brackets"),
            ("udp://[2001:2::1:4739", "not closed"),
            ("udp://[2001:2::1]", "port is missing"),
            ("sctp://198.18.0.1:4739", "the transport is unknown"),
            ("collector", "neither a transport nor a path"),
            ("file:", "path is missing"),
            ("/tmp/", "directory"),
        ] {
            let error = text.parse::<ExportTarget>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{text}: {error}");
        }
    }
}
