//! Requests to ClickHouse's HTTP interface.

use super::ClickHouseOptions;
use crate::Error;
use crate::http::{HttpRequest, post_request};
use packetrig_units::text::{encode_url_part, one_line};

const CLICKHOUSE_HTTP_PORT: u16 = 8123;
/// Maximum number of characters of an answer that an error message quotes.
const MAX_SHOWN_ANSWER_CHARACTERS: usize = 300;

pub(super) fn post_body(
    options: &ClickHouseOptions,
    parameters: &[(&str, &str)],
    body: &[u8],
) -> Result<(), Error> {
    let peer = format!("ClickHouse {}", options.address);
    let mut path = String::from("/");
    for (index, (name, value)) in parameters.iter().enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        path.push_str(&encode_url_part(value));
    }
    let credentials = [("X-ClickHouse-User", &*options.user), ("X-ClickHouse-Key", &*options.password)];
    // Without these headers the server uses its default user.
    let headers = if options.user.is_empty() { &[][..] } else { &credentials[..] };
    let request = HttpRequest { address: &options.address, path: &path, headers, body };
    let answer = post_request(&request, CLICKHOUSE_HTTP_PORT, options.timeout.to_std())
        .map_err(Error::network(&peer))?;
    match answer.status {
        // ClickHouse may fail after it has sent status 200: then the answer has this header.
        Some(200) if !answer.has_header("X-ClickHouse-Exception-Code") => Ok(()),
        Some(status) => {
            let shown = one_line(answer.body.trim(), MAX_SHOWN_ANSWER_CHARACTERS);
            Err(Error::Refused {
                peer,
                said: format!("the server answered with HTTP status {status}: {shown}"),
            })
        }
        None => Err(Error::Refused {
            peer,
            said: "the answer is not HTTP; check that the port is that of ClickHouse's HTTP interface".into(),
        }),
    }
}
