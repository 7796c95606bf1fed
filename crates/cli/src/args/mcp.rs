//! Arguments of `packetrig mcp`.

use super::ServerAccessArgs;
use clap::Args;
use packetrig_server::client::ApiAddress;

/// Let an AI assistant use a server, with the Model Context Protocol on standard input and output. Each tool is a call
/// of the server's documented API, with the rights that this user or token has there.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig mcp\n  \
    packetrig mcp https://rig2:8443 --ca rig2.pem --token-file view-token")]
pub(crate) struct McpArgs {
    /// Address of the server, as the server prints it. Without `http://`, HTTPS
    /// is used [default: https://127.0.0.1:8443]
    #[arg(value_name = "ADDRESS|URL")]
    pub(crate) server: Option<ApiAddress>,
    #[command(flatten)]
    pub(crate) access: ServerAccessArgs,
}
