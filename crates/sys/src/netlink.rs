//! Netlink conversations: one request, its answers, its acknowledgement.
//!
//! A [`NetlinkConversation`] owns one netlink socket, which stays in the network namespace it was opened in. The
//! callers build and interpret the messages.

use crate::{Error, netns::NetNs};
use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::time::Duration;

/// Maximum size of a datagram of answers from the kernel, in bytes.
const RECEIVE_BUFFER: usize = 1 << 16;

/// The kernel answers within microseconds, or, while it holds its configuration lock, within seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct NetlinkConversation {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    label: String,
}

impl std::fmt::Debug for NetlinkConversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetlinkConversation").field("namespace", &self.label).finish_non_exhaustive()
    }
}

impl NetlinkConversation {
    pub(crate) fn open_in(netns: &NetNs, protocol: isize) -> Result<Self, Error> {
        let connected = netns.run_in_namespace(|| connect_socket(protocol))?;
        let socket = connected.map_err(|error| Error::from_call("socket(netlink)", netns.label(), error))?;
        Ok(Self { socket, buffer: vec![0; RECEIVE_BUFFER], sequence: 0, label: netns.label().to_owned() })
    }

    /// Makes the kernel refuse unknown parts of a request, instead of ignoring them.
    pub(crate) fn request_strict_checks(&mut self) -> std::io::Result<()> {
        self.socket.set_netlink_get_strict_chk(true)
    }

    /// Sends a request and calls `each` with every answer, until the acknowledgement or the end of the dump. Returns
    /// how many answers the parser did not understand: a caller that must not miss an answer checks that this is 0.
    pub(crate) fn request_answers<M>(
        &mut self,
        request: M,
        flags: u16,
        each: &mut dyn FnMut(M),
    ) -> std::io::Result<usize>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        // Each request has its own number, so that late answers to an earlier request are recognised.
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.sequence_number = self.sequence;
        // The answers to a dump end with NLMSG_DONE, all other answers with the acknowledgement
        // that this flag requests.
        let ack = if flags & NLM_F_DUMP == NLM_F_DUMP { 0 } else { NLM_F_ACK };
        header.flags = NLM_F_REQUEST | flags | ack;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut unread = 0;
        while !self.read_answers(each, &mut unread)? {}
        Ok(unread)
    }

    /// Reads one datagram of answers; true at the end of the conversation.
    fn read_answers<M: NetlinkDeserializable>(
        &mut self,
        each: &mut dyn FnMut(M),
        unread: &mut usize,
    ) -> std::io::Result<bool> {
        let length = self.socket.recv(&mut &mut self.buffer[..], 0)?;
        let mut rest = self.buffer.get(..length).ok_or(std::io::ErrorKind::InvalidData)?;
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let one = rest.get(..length).filter(|_| length >= 16).ok_or(std::io::ErrorKind::InvalidData)?;
            // Messages are padded to four bytes, but the last one need not be.
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            match NetlinkMessage::<M>::deserialize(one) {
                // This answer is left over from a conversation that ended early.
                Ok(answer) if answer.header.sequence_number != self.sequence => {}
                Ok(answer) => match answer.payload {
                    NetlinkPayload::InnerMessage(message) => each(message),
                    // An error of 0 is the acknowledgement, which ends the conversation.
                    NetlinkPayload::Error(error) => return result_from_error_code(&error).map(|()| true),
                    NetlinkPayload::Done(_) => return Ok(true),
                    _ => {}
                },
                Err(_) => *unread += 1,
            }
        }
        Ok(false)
    }
}

fn connect_socket(protocol: isize) -> std::io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    // Port 0 is the kernel. Messages of other processes to a connected socket are refused.
    socket.connect(&SocketAddr::new(0, 0))?;
    // An answer that never comes must be an error, not a hang.
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}

fn result_from_error_code(error: &ErrorMessage) -> std::io::Result<()> {
    match error.code {
        None => Ok(()),
        Some(code) => Err(std::io::Error::from_raw_os_error(code.get().abs())),
    }
}
