//! Who may call: the bearer token.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use std::sync::Arc;

/// The token that callers must have, if any.
#[derive(Clone, Default)]
pub(crate) struct Access(Option<Arc<str>>);

impl Access {
    pub(crate) fn new(token: Option<&str>) -> Self {
        Self(token.map(Arc::from))
    }

    /// Whether a call with these headers may come in.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.0 else { return true };
        let sent = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let Some((scheme, sent)) = sent.split_at_checked("Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && are_equal(sent, token.as_bytes())
    }
}

/// Looks at every byte whatever it finds, so that the time taken tells nothing but the length.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(token: Option<&str>, header: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(AUTHORIZATION, header.parse().expect("a header"));
        }
        Access::new(token).admits(&headers)
    }

    #[test]
    fn only_the_token_opens() {
        assert!(admits(None, None));
        assert!(admits(Some("secret"), Some("Bearer secret")));
        assert!(admits(Some("secret"), Some("bearer secret")));
        for wrong in
            [None, Some(""), Some("Bearer "), Some("Bearer secre"), Some("Bearer secrets"), Some("secret")]
        {
            assert!(!admits(Some("secret"), wrong), "{wrong:?}");
        }
        assert!(!admits(Some("secret"), Some("Basic secret")));
    }
}
