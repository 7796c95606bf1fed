//! Decides from the head of a request whether the request reaches the API: it must be for this host, must not
//! come from a web page of another origin, must have a content type that the API accepts, and must come from a
//! client that may call.

use super::access::{AccessRules, ClientCredential, ClientPeer};
use super::rejections::RejectionCause;
use crate::page;
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{Method, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Maximum length of the head of a request, on both transports.
pub(crate) const MAX_REQUEST_HEAD_BYTES: u32 = 64 << 10;

/// The protocol of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallProtocol {
    Http,
    Grpc,
}

/// Why a request is refused, and the status and message of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRejection {
    pub(crate) cause: RejectionCause,
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

/// The rules for requests on one transport.
#[derive(Clone, Debug)]
pub(crate) struct RequestPolicy {
    pub(crate) protocol: CallProtocol,
    pub(crate) is_encrypted: bool,
    pub(crate) access: AccessRules,
    pub(crate) host_names: Arc<[String]>,
}

impl RequestPolicy {
    /// Admits a request with this head and returns the reason, or refuses it.
    pub(crate) fn check_request(
        &self,
        peer: &ClientPeer,
        head: &Parts,
    ) -> Result<ClientCredential, RequestRejection> {
        check_head_length(head)?;
        if self.protocol == CallProtocol::Http && page::is_page_file(head) {
            return self.check_page_file(head).map(|()| ClientCredential::PublicFile);
        }
        let credential = self.access.find_credential(peer, &head.headers);
        // DNS rebinding: an attacker can make the host name of a web page point to this server, and then the page could
        // read the answers. A page does not have the token, so a request with the token may name any host.
        if !matches!(credential, Some(ClientCredential::Token | ClientCredential::ViewToken)) {
            self.check_host_header(head)?;
        }
        // The origin is checked even if the request has the token: pages of other origins are always
        // refused (decision 0018, 5).
        self.check_origin_header(head)?;
        let credential = credential.ok_or_else(|| RequestRejection {
            cause: RejectionCause::Token,
            status: StatusCode::UNAUTHORIZED,
            message: self.access.build_access_refusal_text(peer),
        })?;
        if credential == ClientCredential::ViewToken && !self.is_open_to_viewers(head) {
            return Err(RequestRejection {
                cause: RejectionCause::Token,
                status: StatusCode::FORBIDDEN,
                message: "this token only permits viewing; send the token of --token-file".to_owned(),
            });
        }
        self.check_content_type(head)?;
        Ok(credential)
    }

    fn is_open_to_viewers(&self, head: &Parts) -> bool {
        self.protocol == CallProtocol::Http && page::is_viewing_request(head)
    }

    /// Checks a request for a file of the page. It needs no token: a browser cannot send one with a URL that a user
    /// types. The page must not appear under the name of another host, where it would ask for the token in that
    /// host's name. A link on another page may lead here.
    fn check_page_file(&self, head: &Parts) -> Result<(), RequestRejection> {
        self.check_host_header(head)?;
        if is_page_navigation(&head.headers) { Ok(()) } else { self.check_origin_header(head) }
    }

    fn check_host_header(&self, head: &Parts) -> Result<(), RequestRejection> {
        match list_named_hosts(head) {
            // HTTP/1.1 requires a Host header (RFC 9112, 3.2), so a request
            // that names no host is refused, too.
            Some(named)
                if !named.is_empty() && named.iter().all(|host| self.is_own_host_name(host.host())) =>
            {
                Ok(())
            }
            _ => Err(RequestRejection {
                cause: RejectionCause::Host,
                status: StatusCode::MISDIRECTED_REQUEST,
                message: "the request is for another host: call this server by its address or as localhost, \
                          send the token, or start the server with --host-name NAME"
                    .to_owned(),
            }),
        }
    }

    fn is_own_host_name(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        // An address is not looked up in DNS, so it cannot have been redirected here.
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.host_names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Refuses requests from web pages of other origins, by the headers `Origin` and
    /// `Sec-Fetch-Site`, which browsers send.
    fn check_origin_header(&self, head: &Parts) -> Result<(), RequestRejection> {
        let headers = &head.headers;
        let site_is_ours = headers
            .get_all(SEC_FETCH_SITE)
            .iter()
            // `none` is a request that the user made, for example by typing the address.
            .all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"));
        let ours = list_named_hosts(head).and_then(|hosts| hosts.into_iter().next());
        let origin_is_ours =
            headers.get_all(ORIGIN).iter().all(|origin| self.is_own_origin(origin, ours.as_ref()));
        if site_is_ours && origin_is_ours {
            return Ok(());
        }
        Err(RequestRejection {
            cause: RejectionCause::Origin,
            status: StatusCode::FORBIDDEN,
            message: "web pages of other origins may not call this server".to_owned(),
        })
    }

    /// Returns whether an origin is the host that the request names, with the scheme of this transport.
    fn is_own_origin(&self, origin: &HeaderValue, ours: Option<&Authority>) -> bool {
        let scheme = if self.is_encrypted { "https://" } else { "http://" };
        let named = origin.to_str().ok().and_then(|origin| origin.strip_prefix(scheme));
        named.zip(ours).is_some_and(|(named, ours)| ours.as_str().eq_ignore_ascii_case(named))
    }

    /// Refuses the content types that a page can send without a preflight request: the types of HTML forms,
    /// and no type (the Fetch standard's CORS-safelisted types). The API never answers a preflight request.
    fn check_content_type(&self, head: &Parts) -> Result<(), RequestRejection> {
        let sent = content_type(&head.headers);
        let is_accepted = match self.protocol {
            CallProtocol::Grpc => {
                matches!(sent.as_deref(), Some("application/grpc" | "application/grpc+proto"))
            }
            CallProtocol::Http => {
                // No call with another method reads a body; pages cannot send
                // DELETE without a preflight request.
                let has_body = matches!(head.method, Method::POST | Method::PATCH | Method::PUT);
                !has_body || sent.as_deref().is_some_and(is_document_media_type)
            }
        };
        if is_accepted {
            return Ok(());
        }
        let wanted = match self.protocol {
            CallProtocol::Grpc => "`Content-Type: application/grpc`",
            CallProtocol::Http => {
                "`Content-Type: application/json` (with curl, use --json instead of --data)"
            }
        };
        Err(RequestRejection {
            cause: RejectionCause::ContentType,
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            message: format!("the content type of the request is not accepted; send {wanted}"),
        })
    }
}

/// Refuses a head that is longer than the documented limit. The limits of the HTTP library count buffers, so
/// they are not exact.
fn check_head_length(head: &Parts) -> Result<(), RequestRejection> {
    let target = head.uri.path_and_query().map_or(0, |path| path.as_str().len());
    // Space for the other bytes on the wire: `GET`, `HTTP/1.1`, colons, spaces and line ends.
    let lines = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let length = target + head.method.as_str().len() + 12 + lines.sum::<usize>() + 2;
    if length <= MAX_REQUEST_HEAD_BYTES as usize {
        return Ok(());
    }
    Err(RequestRejection {
        cause: RejectionCause::LongHead,
        status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        message: format!(
            "the head of the request is longer than the limit of {} KiB",
            MAX_REQUEST_HEAD_BYTES >> 10
        ),
    })
}

/// Returns true if the user follows a link or types a URL. The browser then shows the answer under the address of
/// this server, and the page with the link cannot read it.
fn is_page_navigation(headers: &HeaderMap) -> bool {
    let wanted = [(&SEC_FETCH_MODE, "navigate"), (&SEC_FETCH_DEST, "document")];
    wanted.iter().all(|(name, value)| single_header_value(headers, name).is_some_and(|found| found == *value))
        && !headers.contains_key(ORIGIN)
}

/// Accepts JSON, and `application/octet-stream`, which snappi sends for a document in bytes. Web pages cannot send
/// either of these types without a preflight request.
fn is_document_media_type(media: &str) -> bool {
    media == "application/json"
        || media == "application/octet-stream"
        || (media.starts_with("application/") && media.ends_with("+json"))
}

/// The media type in lower case, without parameters; `None` unless there is exactly one.
fn content_type(headers: &HeaderMap) -> Option<String> {
    let media = single_header_value(headers, &CONTENT_TYPE)?.to_str().ok()?.split(';').next()?;
    Some(media.trim().to_ascii_lowercase())
}

/// The value of a header that is given exactly once.
pub(super) fn single_header_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// All hosts that the request names, in its URL and its Host headers; `None` if one of them is not a valid host.
fn list_named_hosts(head: &Parts) -> Option<Vec<Authority>> {
    let mut named: Vec<Authority> = head.uri.authority().cloned().into_iter().collect();
    for host in head.headers.get_all(HOST) {
        named.push(Authority::try_from(host.as_bytes()).ok()?);
    }
    named.iter().all(is_host_and_port).then_some(named)
}

/// Returns whether the text is exactly a host, optionally with a port. `user@host` is no valid Host header: a
/// parser that reads only the part after the `@` would be deceived. So would a parser that reads `[::1]evil` only
/// up to the bracket.
fn is_host_and_port(named: &Authority) -> bool {
    let behind = named.as_str().strip_prefix(named.host());
    behind.is_some_and(|behind| {
        behind.is_empty() || behind.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::super::access::PeerKey;
    use super::*;
    use crate::ServerOptions;

    const JSON: (&str, &str) = ("content-type", "application/json");

    fn check(protocol: CallProtocol, uri: &str, headers: &[(&str, &str)]) -> Option<RejectionCause> {
        let options = ServerOptions { token: Some("secret".into()), ..ServerOptions::default() };
        let policy = RequestPolicy {
            protocol,
            is_encrypted: false,
            access: AccessRules::new(&options),
            host_names: ["rig.lab".to_owned()].into(),
        };
        let mut request = http::Request::builder().method("POST").uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let head = request.body(()).expect("a request").into_parts().0;
        let peer = ClientPeer { key: PeerKey::User(0), is_trusted: true };
        policy.check_request(&peer, &head).err().map(|rejection| rejection.cause)
    }

    #[test]
    fn a_request_names_a_host_that_is_ours() {
        for host in
            ["127.0.0.1:8443", "[::1]:8443", "[::1]", "localhost", "LOCALHOST:1", "rig.lab:7", "198.18.0.1"]
        {
            assert_eq!(check(CallProtocol::Http, "/config", &[("host", host), JSON]), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "a@127.0.0.1",
            "rig.lab.",
            "x",
            "[::1]evil",
            "[::1]evil:80",
            "[::1]:80evil",
            "localhost:",
            "localhost:80:80",
        ] {
            let checked = check(CallProtocol::Http, "/config", &[("host", host), JSON]);
            assert_eq!(checked, Some(RejectionCause::Host), "{host}");
        }
        assert_eq!(check(CallProtocol::Http, "/config", &[JSON]), Some(RejectionCause::Host));
        let ours = ("host", "127.0.0.1");
        assert_eq!(
            check(CallProtocol::Http, "/config", &[ours, ("host", "x"), JSON]),
            Some(RejectionCause::Host)
        );
        assert_eq!(
            check(CallProtocol::Http, "http://evil.example/config", &[ours, JSON]),
            Some(RejectionCause::Host)
        );
        let token = ("authorization", "Bearer secret");
        assert_eq!(
            check(CallProtocol::Http, "/config", &[("host", "rig-in-a-network:1"), token, JSON]),
            None
        );
    }

    #[test]
    fn request_head_length_limit_is_as_documented() {
        let head = |length: usize| {
            let long = "x".repeat(length);
            check(CallProtocol::Http, "/config", &[("host", "localhost"), JSON, ("x-long", &long)])
        };
        assert_eq!(head(64_000), None);
        assert_eq!(head(65_600), Some(RejectionCause::LongHead));
    }

    #[test]
    fn foreign_web_pages_are_refused() {
        let host = ("host", "127.0.0.1:8080");
        let token = ("authorization", "Bearer secret");
        for protocol in [CallProtocol::Http, CallProtocol::Grpc] {
            let media =
                if protocol == CallProtocol::Http { JSON } else { ("content-type", "application/grpc") };
            let with = |header| check(protocol, "/config", &[host, token, media, header]);
            assert_eq!(with(("origin", "http://127.0.0.1:8080")), None);
            assert_eq!(with(("sec-fetch-site", "same-origin")), None);
            for origin in
                ["null", "", "https://evil.example", "https://127.0.0.1:8080", "http://127.0.0.1:8081"]
            {
                assert_eq!(with(("origin", origin)), Some(RejectionCause::Origin), "{origin}");
            }
            for site in ["cross-site", "same-site", "else"] {
                assert_eq!(with(("sec-fetch-site", site)), Some(RejectionCause::Origin), "{site}");
            }
        }
    }

    #[test]
    fn request_body_needs_accepted_content_type() {
        let host = ("host", "localhost");
        for media in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/octet-stream",
            "application/x+json",
        ] {
            assert_eq!(
                check(CallProtocol::Http, "/config", &[host, ("content-type", media)]),
                None,
                "{media}"
            );
        }
        for media in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "text/json"]
        {
            let checked = check(CallProtocol::Http, "/config", &[host, ("content-type", media)]);
            assert_eq!(checked, Some(RejectionCause::ContentType), "{media}");
        }
        assert_eq!(check(CallProtocol::Http, "/config", &[host]), Some(RejectionCause::ContentType));
        assert_eq!(
            check(CallProtocol::Grpc, "/a", &[host, ("content-type", "application/grpc+proto")]),
            None
        );
        for media in [
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpc-web-text",
            "application/json",
        ] {
            let checked = check(CallProtocol::Grpc, "/a", &[host, ("content-type", media)]);
            assert_eq!(checked, Some(RejectionCause::ContentType), "{media}");
        }
    }
}
