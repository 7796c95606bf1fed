//! A connection to one broker, with the calls that a producer needs.

use super::batch::KafkaProducer;
use super::wire::{KafkaReader, KafkaWriter};
use super::{KafkaOptions, PartitionLeader, TopicPartition};
use crate::Error;
use packetrig_units::clamp_to_i32;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;

const KAFKA_CLIENT_ID: &str = "packetrig";
/// Maximum number of bytes of an answer: answers to a producer are small.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const KAFKA_PORT: u16 = 9092;

/// A call of Kafka's protocol, with the only version that packetrig uses. Brokers of Kafka 2.1 (2018) and
/// later support these versions.
#[derive(Clone, Copy)]
struct KafkaCall {
    key: i16,
    version: i16,
    name: &'static str,
}

const PRODUCE_CALL: KafkaCall = KafkaCall { key: 0, version: 7, name: "Produce" };
const METADATA_CALL: KafkaCall = KafkaCall { key: 3, version: 4, name: "Metadata" };
const API_VERSIONS_CALL: KafkaCall = KafkaCall { key: 18, version: 0, name: "ApiVersions" };
const INIT_PRODUCER_CALL: KafkaCall = KafkaCall { key: 22, version: 1, name: "InitProducerId" };

/// Result of sending a batch.
#[derive(Debug)]
pub(super) enum ProduceOutcome {
    Stored,
    /// The broker will never accept the batch.
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
        let stream =
            crate::network::connect_tcp(address, KAFKA_PORT, timeout).map_err(Error::network(&peer))?;
        let timeout_ms = clamp_to_i32(timeout.as_millis());
        let mut broker = Self { peer, stream, correlation: 0, timeout_ms };
        // The versions are requested first: an old broker closes the connection at a call
        // with an unsupported version.
        broker.check_call_versions()?;
        Ok(broker)
    }

    fn check_call_versions(&mut self) -> Result<(), Error> {
        let answer = self.call_broker(API_VERSIONS_CALL, &[])?;
        let mut reader = KafkaReader(&answer);
        if reader.read_i16() != Some(0) {
            return Err(self.invalid_answer_error(API_VERSIONS_CALL));
        }
        let ranges = reader.read_list(|item| Some((item.read_i16()?, item.read_i16()?..=item.read_i16()?)));
        let Some(ranges) = ranges else { return Err(self.invalid_answer_error(API_VERSIONS_CALL)) };
        let ranges: BTreeMap<_, _> = ranges.into_iter().collect();
        for call in [PRODUCE_CALL, METADATA_CALL, INIT_PRODUCER_CALL] {
            let is_supported = ranges.get(&call.key).is_some_and(|range| range.contains(&call.version));
            if !is_supported {
                let KafkaCall { version, name, .. } = call;
                let why = format!(
                    "the broker does not support version {version} of {name}; use Kafka 2.1 or newer"
                );
                return Err(self.refusal_error(why));
            }
        }
        Ok(())
    }

    /// Returns the partitions of a topic with their leaders, in the order of their numbers.
    pub(super) fn fetch_partitions(&mut self, topic: &str) -> Result<Vec<TopicPartition>, Error> {
        let mut body = KafkaWriter::default();
        // One topic; the last byte allows the broker to create it.
        body.put_i32(1).put_text(topic).put_i8(1);
        let answer = self.call_broker(METADATA_CALL, &body.0)?;
        let Some(BrokerMetadata { brokers, topic: found }) = read_metadata(&answer) else {
            return Err(self.invalid_answer_error(METADATA_CALL));
        };
        // An error of the topic comes inside an answer that is valid as a whole.
        if found.code != 0 {
            return Err(self.refusal_error(format!("topic {topic}: {}", describe_kafka_error(found.code))));
        }
        let mut partitions = Vec::new();
        for (number, broker) in found.leaders {
            // A partition without a leader names a broker that is not in the list.
            let address = brokers.get(&broker).cloned();
            partitions.push(TopicPartition {
                number,
                leader: address.map(|address| PartitionLeader { broker, address }),
            });
        }
        // The partition of a flow follows from its index in this list, so the order must be the
        // same after each reconnection.
        partitions.sort_by_key(|partition| partition.number);
        if partitions.iter().all(|partition| partition.leader.is_none()) {
            return Err(self.refusal_error(format!("topic {topic}: no partition has a leader")));
        }
        Ok(partitions)
    }

    /// Gets a producer id, which brokers use to recognise repeated batches.
    pub(super) fn request_producer_id(&mut self) -> Result<KafkaProducer, Error> {
        let mut body = KafkaWriter::default();
        // A null text: there is no transaction. The timeout of the transaction is nevertheless part of the call.
        body.put_i16(-1).put_i32(self.timeout_ms);
        let answer = self.call_broker(INIT_PRODUCER_CALL, &body.0)?;
        let Some(ProducerIdAnswer { code, id, epoch }) = read_producer_id(&answer) else {
            return Err(self.invalid_answer_error(INIT_PRODUCER_CALL));
        };
        if code == 0 {
            Ok(KafkaProducer::new(id, epoch))
        } else {
            Err(self.refusal_error(describe_kafka_error(code)))
        }
    }

    /// Sends a batch to its partition and waits until all replicas have it. After an error,
    /// another attempt may succeed.
    pub(super) fn produce_batch(
        &mut self,
        topic: &str,
        partition: i32,
        batch: &[u8],
    ) -> Result<ProduceOutcome, Error> {
        let mut body = KafkaWriter::default();
        // No transaction (a null text); acknowledged by all replicas (-1); the timeout.
        body.put_i16(-1).put_i16(-1).put_i32(self.timeout_ms);
        body.put_i32(1).put_text(topic).put_i32(1).put_i32(partition).put_bytes(batch);
        let answer = self.call_broker(PRODUCE_CALL, &body.0)?;
        let Some(code) = read_produce_error(&answer) else {
            return Err(self.invalid_answer_error(PRODUCE_CALL));
        };
        match code {
            // 46: the broker has this batch already; its first answer was lost.
            0 | 46 => Ok(ProduceOutcome::Stored),
            // The broker does not accept this producer's sequence number or epoch: a new producer id is needed.
            45 | 47 | 59 => Err(Error::OutOfSequence { peer: self.peer.clone() }),
            // The batch is too large, not authorised, or not valid: the same batch would be refused again.
            10 | 17 | 18 | 29 | 31 | 32 | 42 | 43 | 44 | 87 => {
                Ok(ProduceOutcome::Never(self.batch_refusal_error(topic, partition, code)))
            }
            _ => Err(self.batch_refusal_error(topic, partition, code)),
        }
    }

    fn batch_refusal_error(&self, topic: &str, partition: i32, code: i16) -> Error {
        self.refusal_error(format!("topic {topic}, partition {partition}: {}", describe_kafka_error(code)))
    }

    fn call_broker(&mut self, call: KafkaCall, body: &[u8]) -> Result<Vec<u8>, Error> {
        // The correlation number only has to differ from that of the previous call.
        self.correlation = self.correlation.wrapping_add(1);
        let mut request = KafkaWriter::default();
        request
            .put_i16(call.key)
            .put_i16(call.version)
            .put_i32(self.correlation)
            .put_text(KAFKA_CLIENT_ID)
            .put_raw_bytes(body);
        let mut framed = KafkaWriter::default();
        // A request has the same form as a byte string: its length in four bytes, then its content.
        framed.put_bytes(&request.0);
        let answered = self.exchange_frames(&framed.0).map_err(Error::network(&self.peer))?;
        let Some((number, answer)) = answered.split_first_chunk::<4>() else {
            return Err(self.invalid_answer_error(call));
        };
        // Calls are made one at a time, so an answer with another number is a late one, or the peer is not a broker.
        if i32::from_be_bytes(*number) == self.correlation {
            Ok(answer.to_vec())
        } else {
            Err(self.invalid_answer_error(call))
        }
    }

    fn exchange_frames(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.stream.write_all(request)?;
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        // The length comes from the peer: it is checked before memory is allocated for it.
        let length = u32::from_be_bytes(head) as usize;
        if length > MAX_ANSWER_BYTES {
            let why = format!("the answer has {length} bytes, more than the limit of {MAX_ANSWER_BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        Ok(answer)
    }

    fn refusal_error(&self, said: impl Into<String>) -> Error {
        Error::Refused { peer: self.peer.clone(), said: said.into() }
    }

    fn invalid_answer_error(&self, call: KafkaCall) -> Error {
        self.refusal_error(format!(
            "the answer to {} is not valid; check that the address is that of a Kafka broker",
            call.name
        ))
    }
}

/// The cluster and one topic, as a broker describes them.
struct BrokerMetadata {
    /// Addresses of the brokers by their ids.
    brokers: BTreeMap<i32, String>,
    topic: TopicMetadata,
}

struct TopicMetadata {
    code: i16,
    /// Partitions and the ids of their leaders.
    leaders: Vec<(i32, i32)>,
}

/// An answer to InitProducerId: error code 0 and the producer id, or another error code.
struct ProducerIdAnswer {
    code: i16,
    id: i64,
    epoch: i16,
}

fn read_producer_id(answer: &[u8]) -> Option<ProducerIdAnswer> {
    let mut reader = KafkaReader(answer);
    // Time for which the broker throttled the call.
    reader.read_i32()?;
    Some(ProducerIdAnswer { code: reader.read_i16()?, id: reader.read_i64()?, epoch: reader.read_i16()? })
}

fn read_metadata(answer: &[u8]) -> Option<BrokerMetadata> {
    let mut reader = KafkaReader(answer);
    // Time for which the broker throttled the call.
    reader.read_i32()?;
    let brokers = reader.read_list(|item| {
        let id = item.read_i32()?;
        let host = item.read_text()?;
        let port = item.read_i32()?;
        // The name of the broker's rack, which may be null.
        item.read_text()?;
        // An IPv6 address needs brackets if a port follows.
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Some((id, format!("{host}:{port}")))
    })?;
    // The cluster's id, and the id of its controller.
    reader.read_text()?;
    reader.read_i32()?;
    let topics = reader.read_list(|item| {
        let code = item.read_i16()?;
        // The topic's name, and whether Kafka uses it for itself.
        item.read_text()?;
        item.read_bool()?;
        let leaders = item.read_list(|item| {
            // An error of the partition, such as a missing leader; its leader is then -1.
            item.read_i16()?;
            let leader = (item.read_i32()?, item.read_i32()?);
            // Replicas, and the replicas that are in sync.
            item.read_list(KafkaReader::read_i32)?;
            item.read_list(KafkaReader::read_i32)?;
            Some(leader)
        })?;
        Some(TopicMetadata { code, leaders })
    })?;
    Some(BrokerMetadata { brokers: brokers.into_iter().collect(), topic: topics.into_iter().next()? })
}

/// The error code of the single partition in an answer to Produce.
fn read_produce_error(answer: &[u8]) -> Option<i16> {
    let topics = KafkaReader(answer).read_list(|item| {
        item.read_text()?;
        item.read_list(|item| {
            item.read_i32()?;
            let code = item.read_i16()?;
            // Offset of the first record, time of the append, first offset of the log.
            item.read_i64()?;
            item.read_i64()?;
            item.read_i64()?;
            Some(code)
        })
    })?;
    topics.into_iter().flatten().next()
}

fn describe_kafka_error(code: i16) -> String {
    let name = match code {
        2 => "the batch was damaged on the way",
        3 => "unknown topic or partition",
        5 | 6 => "this broker does not lead the partition at the moment",
        7 => "the replicas did not answer in time",
        10 => "the batch is larger than the topic allows",
        17 => "the name of the topic is not valid",
        18 => "the batch is larger than a log segment",
        19 | 20 => "too few replicas are in sync",
        29 | 31 => "the broker does not authorise this client",
        32 => "the broker does not accept the time of a record",
        42 => "the broker does not understand the request",
        87 => "the broker does not accept a record",
        _ => return format!("Kafka error {code}"),
    };
    format!("{name} (error {code})")
}
