//! The stream of HTTP requests; pieces of it are the payload of probes.
//!
//! Invariant: the byte at an offset of the stream is always the same, so a lost piece can be sent again.

/// A request for one path, repeated without end: a pipeline of valid requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest(Vec<u8>);

impl HttpRequest {
    /// Makes a request for a path of a host; `about` names the contact for these probes and their purpose.
    pub fn new(host: &str, path: &str, about: Option<&str>) -> Self {
        let about = about.map(|about| format!(" (+{about})")).unwrap_or_default();
        let host = remove_control_characters(host);
        let path = remove_control_characters(path).replace(' ', "%20");
        let about = remove_control_characters(&about);
        Self(
            format!(
                "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: packetrig-probe{about}\r\nAccept: */*\r\n\
                 Accept-Encoding: identity\r\nConnection: keep-alive\r\n\r\n"
            )
            .into_bytes(),
        )
    }

    pub const fn length(&self) -> usize {
        self.0.len()
    }

    /// The `length` bytes of the stream from offset `from` on.
    pub fn request_bytes_from(&self, from: u32, length: usize) -> Vec<u8> {
        // The stream repeats the request, so only the offset within one request counts.
        let from = from as usize % self.0.len();
        self.0.iter().cycle().skip(from).take(length).copied().collect()
    }
}

// Line breaks would let a host name or a path add headers or further requests.
fn remove_control_characters(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_one_endless_pipeline() {
        let request = HttpRequest::new("example.net", "/a b\r\nX: y", Some("https://lab.example/probes"));
        let one = String::from_utf8(request.request_bytes_from(0, request.length())).unwrap();
        assert!(one.starts_with("GET /a%20bX:%20y HTTP/1.1\r\nHost: example.net\r\n"), "{one}");
        assert!(one.contains("(+https://lab.example/probes)") && one.ends_with("\r\n\r\n"));
        let three = request.request_bytes_from(0, 3 * request.length());
        for from in [0, 1, 17, request.length(), request.length() + 5] {
            assert_eq!(request.request_bytes_from(u32::try_from(from).unwrap(), 40), &three[from..from + 40]);
        }
    }
}
