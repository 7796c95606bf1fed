//! Serves the mock of the tests until its input ends: `cargo run -p packetrig-server --example serve_mock`.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "an example fails by panicking")]
#![expect(clippy::print_stdout, reason = "an example prints")]

#[path = "../tests/api/mock.rs"]
mod mock;

use std::io::Read;

fn main() {
    let served = mock::Served::start(mock::plain());
    println!("http://{} {}", served.bound.http.unwrap(), served.bound.grpc.unwrap());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    served.finish();
}
