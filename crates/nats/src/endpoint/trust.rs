//! Seals of an endpoint: adds seals to its own messages, and checks seals of other members.

use super::hello_allowance::HelloRateLimiter;
use super::known_controllers::KnownControllers;
use super::place::{header_value, sender_incarnation};
use crate::letter;
use crate::seal::{
    EpochProofs, LetterChecker, LetterRefusal, LetterSealer, NodeSealChecker, NodeSealer, SealKeys,
    verify_epoch_proof,
};
use crate::subject;
use async_nats::{HeaderMap, Message};
use packetrig_fleet::fabric::Error;
use packetrig_fleet::hello::MAX_HELLO_BYTES;
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeName};
use packetrig_sys::clock::monotonic_ns;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Header with the seal of a letter, see [`crate::seal`].
const SEAL_HEADER: &str = "Packetrig-Seal";
const MISSING_SENDER_REFUSAL: LetterRefusal =
    LetterRefusal::NotGenuine("the subject of the message names no node");
/// Header with the proof of the highest epoch that the sender has seen.
const EPOCH_HEADER: &str = "Packetrig-Epoch";

pub(crate) enum EndpointSeals {
    /// Every message is accepted without a check, which is only for tests on one machine.
    None,
    Controller(Box<ControllerSeals>),
    Node(Box<NodeSeals>),
}

pub(crate) struct ControllerSeals {
    sealer: LetterSealer,
}

/// Checks messages of nodes before they are queued: hellos for their length and number, then all messages for their
/// seals. Clones share the state.
#[derive(Clone)]
pub(crate) struct NodeLetterGate {
    hellos: HelloRateLimiter,
    checker: Option<Arc<Mutex<NodeSealChecker>>>,
}

impl std::fmt::Debug for NodeLetterGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeLetterGate")
    }
}

impl NodeLetterGate {
    /// Creates the gate of an endpoint. Only a controller checks seals here; with the keys of a node, or without keys,
    /// all seals pass. With `session`, only messages that are sealed for that instance of the controller pass.
    pub(crate) fn new(keys: Option<&SealKeys>, session: Option<u64>) -> Self {
        let checker = match keys {
            Some(SealKeys::Controller { grants, .. }) => {
                Some(Arc::new(Mutex::new(NodeSealChecker::new(grants.clone(), session))))
            }
            Some(SealKeys::Node { .. }) | None => None,
        };
        Self { hellos: HelloRateLimiter::default(), checker }
    }

    /// Refuses a hello that is too long, or that exceeds the limit of its node. The limits are checked before the seal,
    /// because checking a seal takes time.
    pub(crate) fn check_hello_limits(&self, message: &Message) -> Result<(), LetterRefusal> {
        if !subject::is_hello_subject(&message.subject) {
            return Ok(());
        }
        if message.length > MAX_HELLO_BYTES {
            return Err(LetterRefusal::TooMuch("the hello message is too long"));
        }
        let from = subject::publishing_node(&message.subject).ok_or(MISSING_SENDER_REFUSAL)?;
        let is_allowed = self.hellos.try_take_hello(from, monotonic_ns());
        if is_allowed {
            Ok(())
        } else {
            Err(LetterRefusal::TooMuch("the node sends too many hello messages"))
        }
    }

    /// Checks that the message comes from the node that its subject names, is new, and is sealed for this controller.
    pub(crate) fn check_message(&self, message: &Message) -> Result<(), LetterRefusal> {
        self.check_hello_limits(message)?;
        self.check_seal(message)
    }

    /// Checks only the seal, which is the second step of [`Self::check_message`].
    pub(crate) fn check_seal(&self, message: &Message) -> Result<(), LetterRefusal> {
        const MISSING_INSTANCE: LetterRefusal =
            LetterRefusal::NotGenuine("the message does not say which instance of the node sent it");
        let Some(checker) = &self.checker else { return Ok(()) };
        let from = subject::publishing_node(&message.subject).ok_or(MISSING_SENDER_REFUSAL)?;
        let life = sender_incarnation(message).ok_or(MISSING_INSTANCE)?;
        let mut checker = checker.lock().unwrap_or_else(PoisonError::into_inner);
        checker.check_letter(
            &from,
            life,
            &message.subject,
            header_value(message, SEAL_HEADER),
            &message.payload,
        )
    }
}

pub(crate) struct NodeSeals {
    controllers: KnownControllers,
    sealer: NodeSealer,
    checker: LetterChecker,
    proofs: EpochProofs,
}

impl std::fmt::Debug for EndpointSeals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Controller(_) => "Controller",
            Self::Node(_) => "Node",
        })
    }
}

impl EndpointSeals {
    pub(crate) fn new(
        keys: Option<SealKeys>,
        incarnation: u64,
        epoch_file: Option<PathBuf>,
    ) -> Result<Self, Error> {
        Ok(match keys {
            None => Self::None,
            Some(SealKeys::Controller { signing, grants }) => Self::Controller(Box::new(ControllerSeals {
                sealer: LetterSealer::new(&signing, grants, incarnation)?,
            })),
            Some(SealKeys::Node { controller, grants }) => Self::Node(Box::new(NodeSeals {
                controllers: KnownControllers::default(),
                sealer: NodeSealer::new(&grants, incarnation),
                proofs: EpochProofs::load_from(controller.clone(), epoch_file),
                checker: LetterChecker::new(controller, &grants, incarnation),
            })),
        })
    }

    /// Adds the headers that the receiver needs to verify `bytes`, the encoded `body`, on `subject`.
    pub(super) fn add_seal(
        &mut self,
        headers: &mut HeaderMap,
        subject: &str,
        to: Option<(&NodeName, u64)>,
        body: &MessageBody,
        bytes: &[u8],
    ) -> Result<(), Error> {
        match self {
            Self::None => {}
            Self::Controller(own) => {
                headers.insert(SEAL_HEADER, own.sealer.seal_letter(subject, to, body, bytes)?);
                // The node stores this proof and shows it to later controllers.
                if let MessageBody::Command(head, _) = body {
                    headers.insert(EPOCH_HEADER, own.sealer.epoch_proof(head.epoch));
                }
            }
            Self::Node(own) => {
                own.sealer.set_session(own.controllers.addressee_session(body));
                headers.insert(SEAL_HEADER, own.sealer.seal_letter(subject, bytes));
                // Only hellos need the proof, because a new controller learns the epochs of nodes from them.
                if let (MessageBody::Hello(_), Some(proof)) = (body, own.proofs.highest_proof()) {
                    headers.insert(EPOCH_HEADER, proof);
                }
            }
        }
        Ok(())
    }

    /// Decodes a message, or returns the reason for refusing it. A node also checks the seal here; a controller has
    /// checked it in the [`NodeLetterGate`].
    pub(crate) fn check_and_decode_message(
        &mut self,
        own: &NodeName,
        message: &Message,
    ) -> Result<MessageEnvelope, String> {
        let bytes = &message.payload;
        if !own.is_controller() {
            let mut envelope = letter::decode_message(bytes)?;
            if let Self::Node(seals) = self {
                let seal = header_value(message, SEAL_HEADER);
                // The sender's name in the message proves nothing. The seal proves which instance of a
                // controller sent the message.
                let session = seals.checker.check_letter(&message.subject, seal, &envelope.body, bytes)?;
                seals.controllers.on_message(session, &envelope.body);
                seals.store_proof(message);
                envelope.from = NodeName::controller();
            }
            return Ok(envelope);
        }
        let from =
            subject::publishing_node(&message.subject).ok_or("the subject of the message names no node")?;
        // The name in the subject counts, because the server has checked it; the name in the letter does not.
        let mut envelope = MessageEnvelope { from, ..letter::decode_node_message(&message.subject, bytes)? };
        if let Self::Controller(seals) = self
            && let MessageBody::Hello(hello) = &mut envelope.body
        {
            // The epoch must be one that a controller has signed: otherwise a node could claim the largest epoch, above
            // which no controller can lead.
            hello.epoch = hello.epoch.min(seals.proven_epoch_or_zero(message));
        }
        Ok(envelope)
    }
}

impl ControllerSeals {
    /// Returns the epoch for which the message has a valid proof; zero without one.
    fn proven_epoch_or_zero(&self, message: &Message) -> u64 {
        let proof = header_value(message, EPOCH_HEADER);
        proof.and_then(|proof| verify_epoch_proof(self.sealer.public_key(), proof)).unwrap_or(0)
    }
}

impl NodeSeals {
    fn store_proof(&mut self, message: &Message) {
        if let Some(proof) = header_value(message, EPOCH_HEADER) {
            // If the file cannot be written, this process still has the proof in memory.
            drop(self.proofs.store_proof(proof));
        }
    }
}
