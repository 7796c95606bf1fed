//! Arguments of the commands that send flow records to Kafka or ClickHouse.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordStoreArgs {
    /// Send records to a Kafka topic: BROKER/TOPIC, or BROKER:PORT,BROKER:PORT/TOPIC
    #[arg(long, value_name = "TOPIC")]
    pub(crate) kafka: Option<String>,
    /// Send records to a ClickHouse table: HOST/TABLE, or in full USER@HOST:PORT/DATABASE.TABLE
    #[arg(long, value_name = "TABLE")]
    pub(crate) clickhouse: Option<String>,
    /// Read the password of the ClickHouse user from the first line of
    /// this file [default: $PACKETRIG_CLICKHOUSE_PASSWORD_FILE]
    // The password is in a file and not an argument, because every user of the machine can read command lines.
    #[arg(long, value_name = "FILE", requires = "clickhouse")]
    pub(crate) clickhouse_password_file: Option<PathBuf>,
}

impl RecordStoreArgs {
    /// Returns the files that the program must read to use the stores.
    pub(crate) fn read_files(&self) -> impl Iterator<Item = PathBuf> {
        self.password_file().into_iter()
    }

    /// Returns the file with the password of the ClickHouse user, from the option or the environment. `None` if neither
    /// names a file, or without `--clickhouse`.
    pub(crate) fn password_file(&self) -> Option<PathBuf> {
        let of_environment = || std::env::var_os("PACKETRIG_CLICKHOUSE_PASSWORD_FILE").map(PathBuf::from);
        self.clickhouse.as_ref()?;
        self.clickhouse_password_file.clone().or_else(of_environment)
    }

    /// Returns true if records go to a store over the network.
    pub(crate) const fn is_any_given(&self) -> bool {
        self.kafka.is_some() || self.clickhouse.is_some()
    }
}
