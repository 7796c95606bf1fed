//! A connection to one broker, and the calls a producer makes on it.

use super::batch::KafkaProducer;
use super::wire::{KafkaReader, KafkaWriter};
use super::{KafkaOptions, PartitionLeader};
use crate::flows::Error;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;

const CLIENT: &str = "packetrig";
/// An answer to a producer is small.
const LONGEST_ANSWER: usize = 1 << 20;
const PORT: u16 = 9092;

/// A call and the one version of it that is spoken here. Brokers since 2.1 (2018) speak all of these.
#[derive(Clone, Copy)]
struct KafkaCall {
    key: i16,
    version: i16,
    name: &'static str,
}

const PRODUCE: KafkaCall = KafkaCall { key: 0, version: 7, name: "Produce" };
const METADATA: KafkaCall = KafkaCall { key: 3, version: 4, name: "Metadata" };
const API_VERSIONS: KafkaCall = KafkaCall { key: 18, version: 0, name: "ApiVersions" };
const INIT_PRODUCER: KafkaCall = KafkaCall { key: 22, version: 1, name: "InitProducerId" };

/// What became of a batch that a broker answered.
#[derive(Debug)]
pub(super) enum ProduceOutcome {
    /// It is where it should be.
    Stored,
    /// It will never be taken.
    Never(Error),
}

#[derive(Debug)]
pub(super) struct KafkaBroker {
    peer: String,
    stream: TcpStream,
    correlation: i32,
    timeout_ms: i32,
}

impl KafkaBroker {
    pub(super) fn connect(address: &str, options: &KafkaOptions) -> Result<Self, Error> {
        let timeout = options.timeout.to_std();
        let peer = format!("Kafka broker {address}");
        let stream = crate::flows::network::connect(address, PORT, timeout).map_err(Error::network(&peer))?;
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let mut broker = Self { peer, stream, correlation: 0, timeout_ms };
        broker.check_versions()?;
        Ok(broker)
    }

    fn check_versions(&mut self) -> Result<(), Error> {
        let answer = self.call(API_VERSIONS, &[])?;
        let mut reader = KafkaReader(&answer);
        let code = reader.i16();
        let ranges = reader.list(|item| Some((item.i16()?, (item.i16()?, item.i16()?))));
        let (Some(0), Some(ranges)) = (code, ranges) else { return Err(self.nonsense(API_VERSIONS)) };
        let ranges: BTreeMap<_, _> = ranges.into_iter().collect();
        for call in [PRODUCE, METADATA, INIT_PRODUCER] {
            let known =
                ranges.get(&call.key).is_some_and(|(least, most)| (*least..=*most).contains(&call.version));
            if !known {
                let said =
                    format!("it does not speak version {} of {}; 2.1 and newer do", call.version, call.name);
                return Err(self.refused(said));
            }
        }
        Ok(())
    }

    /// Who leads the partitions of a topic, in their order.
    pub(super) fn leaders(&mut self, topic: &str) -> Result<Vec<PartitionLeader>, Error> {
        let mut body = KafkaWriter::default();
        body.i32(1).text(topic).i8(1);
        let answer = self.call(METADATA, &body.0)?;
        let Some((brokers, partitions, code)) = read_metadata(&answer) else {
            return Err(self.nonsense(METADATA));
        };
        if code != 0 {
            return Err(self.refused(format!("topic {topic}: {}", meaning(code))));
        }
        let leader = |(partition, broker): (i32, i32)| {
            brokers.get(&broker).map(|address| PartitionLeader {
                partition,
                broker,
                address: address.clone(),
            })
        };
        let mut leaders: Vec<_> = partitions.into_iter().filter_map(leader).collect();
        leaders.sort_by_key(|leader| leader.partition);
        if leaders.is_empty() {
            return Err(self.refused(format!("topic {topic}: no partition has a leader")));
        }
        Ok(leaders)
    }

    /// A number under which repeated batches are recognised.
    pub(super) fn producer(&mut self) -> Result<KafkaProducer, Error> {
        let mut body = KafkaWriter::default();
        body.i16(-1).i32(self.timeout_ms);
        let answer = self.call(INIT_PRODUCER, &body.0)?;
        let mut reader = KafkaReader(&answer);
        let read = (reader.i32(), reader.i16(), reader.i64(), reader.i16());
        let (Some(_), Some(code), Some(id), Some(epoch)) = read else {
            return Err(self.nonsense(INIT_PRODUCER));
        };
        if code == 0 { Ok(KafkaProducer::new(id, epoch)) } else { Err(self.refused(meaning(code))) }
    }

    /// Gives a batch to its partition and waits until all replicas have it. An error is worth another attempt.
    pub(super) fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        batch: &[u8],
    ) -> Result<ProduceOutcome, Error> {
        let mut body = KafkaWriter::default();
        body.i16(-1).i16(-1).i32(self.timeout_ms);
        body.i32(1).text(topic).i32(1).i32(partition).bytes(batch);
        let answer = self.call(PRODUCE, &body.0)?;
        let Some(code) = read_produced(&answer) else { return Err(self.nonsense(PRODUCE)) };
        let said = || format!("topic {topic}, partition {partition}: {}", meaning(code));
        match code {
            // 46: it has this batch already, its answer was lost.
            0 | 46 => Ok(ProduceOutcome::Stored),
            45 | 47 | 59 => Err(Error::OutOfSequence { peer: self.peer.clone() }),
            10 | 17 | 18 | 29 | 31 | 32 | 42 | 43 | 44 | 87 => {
                Ok(ProduceOutcome::Never(self.refused(said())))
            }
            _ => Err(self.refused(said())),
        }
    }

    fn call(&mut self, call: KafkaCall, body: &[u8]) -> Result<Vec<u8>, Error> {
        self.correlation = self.correlation.wrapping_add(1);
        let mut request = KafkaWriter::default();
        request.i16(call.key).i16(call.version).i32(self.correlation).text(CLIENT).raw(body);
        let mut framed = KafkaWriter::default();
        framed.bytes(&request.0);
        let answered = self.exchange(&framed.0).map_err(Error::network(&self.peer))?;
        let Some((number, answer)) = answered.split_first_chunk::<4>() else {
            return Err(self.nonsense(call));
        };
        if i32::from_be_bytes(*number) == self.correlation {
            Ok(answer.to_vec())
        } else {
            Err(self.nonsense(call))
        }
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.write_all(request)?;
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes(head) as usize;
        if length > LONGEST_ANSWER {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of {length} bytes")));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn refused(&self, said: impl Into<String>) -> Error {
        Error::Refused { peer: self.peer.clone(), said: said.into() }
    }

    fn nonsense(&self, call: KafkaCall) -> Error {
        self.refused(format!("its answer to {} makes no sense; is it a Kafka broker?", call.name))
    }
}

type BrokerMetadata = (BTreeMap<i32, String>, Vec<(i32, i32)>, i16);

/// Addresses of brokers, leaders of partitions, and the topic's error.
fn read_metadata(answer: &[u8]) -> Option<BrokerMetadata> {
    let mut reader = KafkaReader(answer);
    reader.i32()?;
    let brokers = reader.list(|item| {
        let (id, host, port) = (item.i32()?, item.text()?, item.i32()?);
        item.text()?;
        // An IPv6 address needs brackets where a port follows.
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Some((id, format!("{host}:{port}")))
    })?;
    reader.text()?;
    reader.i32()?;
    let topics = reader.list(|item| {
        let code = item.i16()?;
        item.text()?;
        item.bool()?;
        let partitions = item.list(|item| {
            item.i16()?;
            let place = (item.i32()?, item.i32()?);
            item.list(KafkaReader::i32)?;
            item.list(KafkaReader::i32)?;
            Some(place)
        })?;
        Some((code, partitions))
    })?;
    let (code, partitions) = topics.into_iter().next()?;
    Some((brokers.into_iter().collect(), partitions, code))
}

/// The error of the one partition.
fn read_produced(answer: &[u8]) -> Option<i16> {
    let topics = KafkaReader(answer).list(|item| {
        item.text()?;
        item.list(|item| {
            item.i32()?;
            let code = item.i16()?;
            item.i64()?;
            item.i64()?;
            item.i64()?;
            Some(code)
        })
    })?;
    topics.into_iter().flatten().next()
}

fn meaning(code: i16) -> String {
    let name = match code {
        2 => "the batch was damaged on its way",
        3 => "unknown topic or partition",
        5 | 6 => "the partition has no leader there at the moment",
        7 => "the replicas did not answer in time",
        10 => "the batch is larger than the topic takes",
        17 => "a topic cannot have this name",
        18 => "records are larger than a segment",
        19 | 20 => "too few replicas",
        29 | 31 => "not authorised",
        32 => "a time it does not take",
        42 => "it does not understand the request",
        87 => "a record it does not take",
        _ => return format!("error {code}"),
    };
    format!("{name} (error {code})")
}
