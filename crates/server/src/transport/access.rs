//! Decides which clients may call: users of this machine whom the kernel identifies, clients with a token or a
//! certificate, or every client if the options say so.

use super::policy::single_header_value;
use crate::{LocalUsers, ServerOptions};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Rules by which clients authenticate.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessRules {
    local_users: Option<LocalUsers>,
    token: Option<Arc<str>>,
    view_token: Option<Arc<str>>,
    let_anyone_in: bool,
    /// True if a client certificate suffices. The TLS handshake has already verified it on every connection.
    certificates: bool,
}

/// Facts about a client that are known when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPeer {
    pub(crate) key: PeerKey,
    /// True if the client needs no token, because the kernel has identified its user as an allowed one.
    pub(crate) is_trusted: bool,
}

/// Identity of a client for the limits on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerKey {
    /// A user of this machine.
    User(u32),
    /// An address; of IPv6 only the first 64 bits, because one customer has at least the whole /64.
    Address(IpAddr),
}

/// Reason why a request was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCredential {
    /// The request carried the token, which no web page knows.
    Token,
    /// The request carried the token for viewers, which only permits viewing.
    ViewToken,
    /// No token is needed: the user or the certificate of the connection suffices, or the server admits every client.
    Connection,
    /// No credential is needed: the request is for a file of the page, which is the same for everybody.
    PublicFile,
}

impl AccessRules {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self {
            local_users: options.local_users.clone(),
            token: options.token.as_deref().map(Arc::from),
            view_token: options.view_token.as_deref().map(Arc::from),
            let_anyone_in: options.let_anyone_in,
            // If a token is required as well, a certificate alone does not suffice.
            certificates: options.client_ca.is_some() && options.token.is_none(),
        }
    }

    /// Identifies the client of a new connection: by its user if the kernel can name the user,
    /// otherwise by its address.
    pub(crate) fn identify_peer(&self, client: SocketAddr, server: SocketAddr) -> ClientPeer {
        // Between loopback addresses, both sockets are on this machine, so the kernel knows the client's user.
        // `to_canonical` is needed, because a socket for both families sees IPv4 clients as `::ffff:127.0.0.1`.
        let is_here = client.ip().to_canonical().is_loopback() && server.ip().to_canonical().is_loopback();
        let users = self.local_users.as_ref().filter(|_| is_here);
        match users.and_then(|users| (users.find)(client, server).map(|user| (user, users))) {
            Some((user, users)) => {
                ClientPeer { key: PeerKey::User(user), is_trusted: users.allowed.contains(&user) }
            }
            None => ClientPeer {
                key: PeerKey::Address(address_for_limits(client.ip().to_canonical())),
                is_trusted: false,
            },
        }
    }

    /// Returns the reason to admit a request with these headers; `None` if it is not admitted.
    pub(crate) fn find_credential(&self, peer: &ClientPeer, headers: &HeaderMap) -> Option<ClientCredential> {
        // The token is checked before the connection: it also proves that the caller is no web page.
        if self.token.as_ref().is_some_and(|token| has_token(headers, token)) {
            return Some(ClientCredential::Token);
        }
        if self.view_token.as_ref().is_some_and(|token| has_token(headers, token)) {
            return Some(ClientCredential::ViewToken);
        }
        let by_connection = peer.is_trusted || self.certificates || self.let_anyone_in;
        by_connection.then_some(ClientCredential::Connection)
    }

    /// The message for a client that may not call. It says how the client can authenticate.
    pub(crate) fn build_access_refusal_text(&self, peer: &ClientPeer) -> String {
        let who = match peer.key {
            PeerKey::User(user) => format!("user {user} of this machine"),
            PeerKey::Address(address) => format!("a client at {address}"),
        };
        let token = if self.token.is_some() {
            "send the server's token as `Authorization: Bearer TOKEN`"
        } else {
            "start the server with --token-file and send its token"
        };
        let local = match (&self.local_users, peer.key) {
            (Some(_), PeerKey::User(user)) => {
                format!(", run the client as the server's user, or start the server with --allow-user {user}")
            }
            _ => String::new(),
        };
        format!("{who} may not use this server: {token}{local}")
    }
}

fn address_for_limits(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// Returns whether the request has the token: as `Bearer TOKEN`, or as the password of `Basic`. Clients send `Basic` if
/// their location is `https://any:TOKEN@host`, or if a netrc file names the host.
fn has_token(headers: &HeaderMap, token: &str) -> bool {
    // There must be exactly one header: with two, a proxy in front of the server might have checked the other one.
    let Some(value) = single_header_value(headers, &AUTHORIZATION) else { return false };
    let Some((scheme, rest)) = split_scheme(value.as_bytes()) else { return false };
    // Names of authentication schemes are case-insensitive (RFC 9110, 11.1).
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return are_equal_in_constant_time(rest, token.as_bytes());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return false;
    }
    let Some(pair) = decode_base64(rest) else { return false };
    // RFC 7617, 2: the user name cannot have a colon, so the password begins after the first one. Any
    // user name will do.
    let Some(colon) = pair.iter().position(|byte| *byte == b':') else { return false };
    are_equal_in_constant_time(&pair[colon + 1..], token.as_bytes())
}

fn split_scheme(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = value.iter().position(|byte| *byte == b' ')?;
    Some((&value[..space], value[space..].trim_ascii()))
}

/// Decodes base64 (RFC 4648, section 4). `None` for other characters.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    // The padding adds no bytes, so it may be missing.
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for symbol in group {
            bits = bits << 6 | decode_sextet(*symbol)?;
        }
        // A last group of n symbols has n - 1 whole bytes, at the top of the 24 bits.
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len().max(1)]);
    }
    Some(bytes)
}

fn decode_sextet(symbol: u8) -> Option<u32> {
    let value = match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// Compares all bytes in constant time, so that the time reveals nothing about the token except its length.
fn are_equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(token: Option<&str>) -> AccessRules {
        let options = ServerOptions {
            token: token.map(str::to_owned),
            local_users: Some(LocalUsers {
                allowed: vec![0, 1000],
                find: Arc::new(|client, _| Some(u32::from(client.port()))),
            }),
            ..ServerOptions::default()
        };
        AccessRules::new(&options)
    }

    fn stranger() -> ClientPeer {
        ClientPeer { key: PeerKey::User(4242), is_trusted: false }
    }

    fn admits(token: Option<&str>, header: Option<&str>) -> Option<ClientCredential> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().expect("a header"));
        }
        access(token).find_credential(&stranger(), &headers)
    }

    #[test]
    fn unknown_client_needs_token() {
        assert_eq!(admits(None, None), None);
        assert_eq!(admits(None, Some("Bearer ")), None);
        // `x:secret`, `:secret`, `a:b:secret` is another password.
        for right in ["Bearer secret", "bearer secret", "Basic eDpzZWNyZXQ=", "basic OnNlY3JldA=="] {
            assert_eq!(admits(Some("secret"), Some(right)), Some(ClientCredential::Token), "{right}");
        }
        for wrong in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer secre"),
            Some("Bearer secrets"),
            Some("secret"),
            Some("Basic secret"),
            Some("Basic c2VjcmV0"),
            Some("Basic YTpiOnNlY3JldA=="),
            Some("Basic !!!!"),
        ] {
            assert_eq!(admits(Some("secret"), wrong), None, "{wrong:?}");
        }
        let mut twice = HeaderMap::new();
        twice.append(AUTHORIZATION, "Bearer secret".parse().expect("a header"));
        twice.append(AUTHORIZATION, "Bearer other".parse().expect("a header"));
        assert_eq!(access(Some("secret")).find_credential(&stranger(), &twice), None);
    }

    #[test]
    fn local_users_are_admitted_only_on_loopback() {
        let access = access(Some("secret"));
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let local = access.identify_peer(at("127.0.0.1:1000"), at("127.0.0.1:8443"));
        assert_eq!(local, ClientPeer { key: PeerKey::User(1000), is_trusted: true });
        let mapped = access.identify_peer(at("[::ffff:127.0.0.1]:1000"), at("[::ffff:127.0.0.1]:8443"));
        assert_eq!(mapped, local);
        assert_eq!(access.identify_peer(at("127.0.0.1:4242"), at("127.0.0.1:8443")), stranger());
        for (client, server) in
            [("198.18.0.9:1000", "198.18.0.1:8443"), ("198.18.0.1:1000", "198.18.0.1:8443")]
        {
            let peer = access.identify_peer(at(client), at(server));
            assert!(!peer.is_trusted && matches!(peer.key, PeerKey::Address(_)), "{client}");
        }
        let near = access.identify_peer(at("[2001:2::1]:1"), at("[2001:2::9]:1"));
        assert_eq!(near, access.identify_peer(at("[2001:2::2]:1"), at("[2001:2::9]:1")));
    }

    #[test]
    fn base64_is_read_or_refused() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg", "foob")] {
            assert_eq!(decode_base64(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode_base64(b"Zm9v-g"), None);
        assert_eq!(decode_base64(b"Zm=v"), None);
    }
}
