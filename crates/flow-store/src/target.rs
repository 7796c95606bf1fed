//! Targets for flow records, as users write them.

use super::alert::{AlertOptions, AlertSink};
use super::clickhouse::{ClickHouseOptions, ClickHouseSink};
use super::kafka::{KafkaOptions, KafkaSink};
use super::{Error, ParquetOptions, ParquetSink, RecordSink};
use std::fmt;
use std::str::FromStr;

/// `DIR`, `kafka://broker[:port][,…]/topic` or `clickhouse://[user@]host[:port]/[database.]table`. A password is never
/// part of the text, because every user of the machine can read command lines. See [`StoreTarget::set_password`].
#[derive(Clone, Debug)]
pub enum StoreTarget {
    Directory(ParquetOptions),
    Kafka(KafkaOptions),
    ClickHouse(ClickHouseOptions),
    /// Rules that watch the records; nothing is stored.
    Alerts(AlertOptions),
}

impl StoreTarget {
    /// Sets the password of the ClickHouse user. Fails for targets of other kinds.
    pub fn set_password(&mut self, password: String) -> Result<(), Error> {
        let Self::ClickHouse(options) = self else {
            return Err(Error::Target {
                text: self.to_string(),
                why: "only a clickhouse:// target can have a password",
            });
        };
        // The password becomes a header line: a line break in it would add headers.
        if password.contains(char::is_control) {
            let text = self.to_string();
            return Err(Error::Target { text, why: "the password contains control characters" });
        }
        options.password = password;
        Ok(())
    }

    /// Makes the sink for the target.
    pub fn open_sink(self) -> Result<Box<dyn RecordSink>, Error> {
        Ok(match self {
            Self::Directory(options) => Box::new(ParquetSink::new(options)?),
            Self::Kafka(options) => Box::new(KafkaSink::new(options)),
            Self::ClickHouse(options) => Box::new(ClickHouseSink::new(options)?),
            Self::Alerts(options) => Box::new(AlertSink::new(options)?),
        })
    }
}

impl FromStr for StoreTarget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // The error quotes the text, but without a password that the user may have written by mistake.
        parse_target(text).map_err(|why| Error::Target { text: without_scheme(&hide_password(text)), why })
    }
}

fn parse_target(text: &str) -> Result<StoreTarget, &'static str> {
    match text.split_once("://") {
        None if text.is_empty() => Err("give a directory"),
        None => Ok(StoreTarget::Directory(ParquetOptions::new(text))),
        Some(("kafka", rest)) => parse_kafka_target(rest)
            .map(StoreTarget::Kafka)
            .ok_or("write BROKER/TOPIC, or BROKER:PORT,BROKER:PORT/TOPIC"),
        Some(("clickhouse", rest)) => parse_clickhouse_target(rest).map(StoreTarget::ClickHouse),
        Some(_) => Err("write a directory, kafka://broker/topic or clickhouse://host/table"),
    }
}

fn parse_kafka_target(rest: &str) -> Option<KafkaOptions> {
    let (brokers, topic) = rest.split_once('/')?;
    let brokers: Vec<_> = brokers.split(',').map(str::to_owned).collect();
    let is_topic = !topic.is_empty() && topic.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let has_brokers = !brokers.iter().any(String::is_empty);
    (is_topic && has_brokers).then(|| KafkaOptions::new(brokers, topic.to_owned()))
}

fn parse_clickhouse_target(rest: &str) -> Result<ClickHouseOptions, &'static str> {
    const SYNTAX_HINT: &str = "write HOST/TABLE, or in full USER@HOST:PORT/DATABASE.TABLE; names consist of letters, digits and `_`";
    const PASSWORD_WARNING: &str = "every user of this machine can read a password on the command line: write the password into a file, and \
                            give the file with --clickhouse-password-file or PACKETRIG_CLICKHOUSE_PASSWORD_FILE";
    if has_password(rest) {
        return Err(PASSWORD_WARNING);
    }
    let (place, table) = rest.split_once('/').ok_or(SYNTAX_HINT)?;
    // The text is split at the last `@`, because the name of a user may contain one.
    let (user, address) = place.rsplit_once('@').unwrap_or(("", place));
    let (database, table) = table.split_once('.').unwrap_or(("default", table));
    // Address and user become header lines: a line break in them would add headers.
    if address.is_empty() || rest.contains(char::is_control) || !is_name(database) || !is_name(table) {
        return Err(SYNTAX_HINT);
    }
    let mut options = ClickHouseOptions::new(address.into(), database.into(), table.into());
    options.user = user.into();
    Ok(options)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The text without the scheme that the options for Kafka and ClickHouse add.
fn without_scheme(text: &str) -> String {
    let rest = ["kafka://", "clickhouse://"].into_iter().find_map(|scheme| text.strip_prefix(scheme));
    rest.unwrap_or(text).to_owned()
}

// Splits at the last `@`, as `parse_clickhouse_target` does: a password may contain one.
fn has_password(rest: &str) -> bool {
    rest.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

fn hide_password(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    if !has_password(rest) {
        return text.to_owned();
    }
    // Everything between the first colon and the last `@` may belong to the password.
    let user = rest.split(':').next().unwrap_or_default();
    let place = rest.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{user}:***@{place}")
}

impl fmt::Display for StoreTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(options) => write!(f, "{}", options.directory.display()),
            Self::Kafka(options) => write!(f, "kafka://{}/{}", options.brokers.join(","), options.topic),
            Self::ClickHouse(options) => {
                write!(f, "clickhouse://{}/{}.{}", options.address, options.database, options.table)
            }
            Self::Alerts(_) => f.write_str("alerts"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_written() {
        let shown = |text: &str| text.parse::<StoreTarget>().unwrap().to_string();
        assert_eq!(shown("records"), "records");
        assert_eq!(shown("kafka://a,b:9093/flows.v1"), "kafka://a,b:9093/flows.v1");
        assert_eq!(shown("clickhouse://me@db/flows"), "clickhouse://db/default.flows");
        let mut target: StoreTarget = "clickhouse://me@db:1/x.flows".parse().unwrap();
        target.set_password("p:w".into()).unwrap();
        assert!(target.set_password("p\r\nX-Header: w".into()).is_err());
        let StoreTarget::ClickHouse(options) = target else { panic!() };
        assert_eq!((options.user.as_str(), options.password.as_str()), ("me", "p:w"));
        assert_eq!((options.address.as_str(), options.database.as_str()), ("db:1", "x"));
        let wrong = [
            "",
            "kafka://",
            "kafka://a",
            "kafka://a/",
            "kafka://,/t",
            "kafka://a/t/u",
            "clickhouse://a",
            "clickhouse:///t",
            "clickhouse://a/t;u",
            "clickhouse://a\r\nb/t",
            "http://a/b",
        ];
        for text in wrong {
            assert!(text.parse::<StoreTarget>().is_err(), "{text}");
        }
        let said = "kafka://foo".parse::<StoreTarget>().unwrap_err().to_string();
        assert!(said.starts_with("`foo` is") && said.contains("BROKER/TOPIC"), "{said}");
    }

    #[test]
    fn password_in_target_is_refused_and_masked() {
        for text in
            ["clickhouse://me:s3cret@db/flows", "clickhouse://me:s3:cr@et@db", "http://me:s3cret@db/flows"]
        {
            let said = text.parse::<StoreTarget>().unwrap_err().to_string();
            assert!(said.contains("me:***@db") && !said.contains("s3"), "{said}");
        }
        let said = "clickhouse://me:s3cret@db/flows".parse::<StoreTarget>().unwrap_err().to_string();
        assert!(said.contains("--clickhouse-password-file"), "{said}");
        assert!("records".parse::<StoreTarget>().unwrap().set_password("pw".into()).is_err());
    }
}
