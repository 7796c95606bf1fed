//! The stores of flow records that a user names: a Kafka topic and a ClickHouse table.

use crate::args::RecordStoreArgs;
use crate::error::Error;
use packetrig_flow_store::StoreTarget;
use std::path::Path;

impl RecordStoreArgs {
    /// Returns the stores. Reads the password file, so it must be called before the program gives up its rights.
    pub(crate) fn to_targets(&self) -> Result<Vec<StoreTarget>, Error> {
        let mut targets = Vec::new();
        if let Some(text) = &self.kafka {
            targets.push(with_scheme("kafka", text).parse()?);
        }
        if let Some(text) = &self.clickhouse {
            let mut target: StoreTarget = with_scheme("clickhouse", text).parse()?;
            // Other programs could read a password on the command line or in the environment, so the user names
            // a file with it.
            if let Some(path) = self.password_file() {
                target.set_password(read_password(&path)?)?;
            }
            targets.push(target);
        }
        Ok(targets)
    }
}

fn with_scheme(scheme: &str, text: &str) -> String {
    // The option names the kind of store already, so the address alone is enough.
    if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") }
}

/// Reads the password from the first line of the file, without the line end, which editors append.
fn read_password(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::ReadFile { name: path.display().to_string(), source })?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}
