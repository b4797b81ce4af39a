//! How messages get from one element's process to another's: through rings of shared memory, or
//! by MPI.

use crate::message::{ElementMessage, MOST_MESSAGE_BYTES};
use std::collections::VecDeque;
use terrace_sys::RingEndpoint;

/// Whether to wait for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageWait {
    /// Only look.
    No,
    /// For a while; the caller asks again.
    Yes,
}

/// Why elements cannot tell each other anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Bytes that are no message.
    #[error("element {0} sent bytes that are no message; run one build of terrace everywhere")]
    Damaged(u32),
    /// A reply that does not fit what was asked for.
    #[error(
        "element {0} answered with other bytes than were asked for; run one build of terrace \
             everywhere"
    )]
    WrongReply(u32),
    /// Elements went silent.
    #[error("element {0} did not say that it leaves; look for its own message")]
    Silent(u32),
}

/// Carries messages between elements. Those of one to another arrive in order.
pub trait ElementTransport {
    /// The element at this end.
    fn element(&self) -> u32;
    /// Elements that there are.
    fn elements(&self) -> u32;
    /// Sends a message, now or during later calls.
    fn send(&mut self, to: u32, message: &ElementMessage);
    /// Whether all that was sent is on its way.
    fn flush(&mut self) -> bool {
        true
    }
    /// The next message, and its sender.
    ///
    /// # Errors
    /// [`TransportError::Damaged`].
    fn receive(
        &mut self,
        wait: MessageWait,
    ) -> Result<Option<(u32, ElementMessage)>, TransportError>;
    /// Tells all others that the run is over, and that this element leaves.
    fn end_others(&mut self, status: u8, line: Option<String>) {
        let message = ElementMessage::End { status, line };
        let own = self.element();
        for other in (0..self.elements()).filter(|other| *other != own) {
            self.send(other, &message);
            self.send(other, &ElementMessage::Leave);
        }
    }
}

/// Rings of shared memory: each message is its length in four bytes, then itself.
#[derive(Debug)]
pub struct RingTransport {
    endpoint: RingEndpoint,
    /// By the other element.
    outgoing: Vec<VecDeque<u8>>,
    incoming: Vec<Vec<u8>>,
    /// Whose bytes are looked at first next time.
    next: u32,
}

impl RingTransport {
    /// Over an endpoint of rings, whose number is the element's.
    #[must_use]
    pub fn new(endpoint: RingEndpoint) -> Self {
        let n = endpoint.endpoints() as usize;
        Self {
            endpoint,
            outgoing: vec![VecDeque::new(); n],
            incoming: vec![Vec::new(); n],
            next: 0,
        }
    }

    /// Moves what can be moved; whether anything was.
    fn pump(&mut self) -> bool {
        let mut moved = 0;
        for (other, (out, into)) in (0..).zip(self.outgoing.iter_mut().zip(&mut self.incoming)) {
            while !out.is_empty() {
                let written = self.endpoint.write(other, out.as_slices().0);
                out.drain(..written);
                moved += written;
                if written == 0 {
                    break;
                }
            }
            moved += self.endpoint.read(other, into);
        }
        moved > 0
    }

    fn next_whole(&mut self) -> Result<Option<(u32, ElementMessage)>, TransportError> {
        let n = self.elements();
        for offset in 0..n {
            let from = (self.next + offset) % n;
            let bytes = &mut self.incoming[from as usize];
            let Some((head, rest)) = bytes.split_first_chunk::<4>() else { continue };
            let length = u32::from_le_bytes(*head) as usize;
            if length > MOST_MESSAGE_BYTES {
                return Err(TransportError::Damaged(from));
            }
            if let Some(message) = rest.get(..length) {
                let message =
                    ElementMessage::decode(message).ok_or(TransportError::Damaged(from))?;
                bytes.drain(..4 + length);
                self.next = from + 1;
                return Ok(Some((from, message)));
            }
        }
        Ok(None)
    }
}

impl ElementTransport for RingTransport {
    fn element(&self) -> u32 {
        self.endpoint.own()
    }

    fn elements(&self) -> u32 {
        self.endpoint.endpoints()
    }

    fn send(&mut self, to: u32, message: &ElementMessage) {
        let bytes = message.encode();
        if let Some(out) = self.outgoing.get_mut(to as usize) {
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        }
        self.pump();
    }

    fn flush(&mut self) -> bool {
        self.pump();
        self.outgoing.iter().all(VecDeque::is_empty)
    }

    fn receive(
        &mut self,
        wait: MessageWait,
    ) -> Result<Option<(u32, ElementMessage)>, TransportError> {
        let seen = self.endpoint.rings();
        let moved = self.pump();
        let mut message = self.next_whole()?;
        if message.is_none() && !moved && wait == MessageWait::Yes {
            self.endpoint.wait(seen);
            self.pump();
            message = self.next_whole()?;
        }
        Ok(message)
    }
}

/// Messages of MPI; an element is a rank.
#[cfg(feature = "mpi")]
#[derive(Debug)]
pub struct MpiTransport(pub terrace_sys::MpiWorld);

/// Looks at MPI's messages before the processor is given away, then between two sleeps.
#[cfg(feature = "mpi")]
const LOOKS: u32 = 200;

#[cfg(feature = "mpi")]
impl ElementTransport for MpiTransport {
    fn element(&self) -> u32 {
        self.0.rank()
    }

    fn elements(&self) -> u32 {
        self.0.size()
    }

    fn send(&mut self, to: u32, message: &ElementMessage) {
        self.0.send(to, message.encode());
    }

    fn receive(
        &mut self,
        wait: MessageWait,
    ) -> Result<Option<(u32, ElementMessage)>, TransportError> {
        for look in 0..2 * LOOKS {
            if let Some((from, bytes)) = self.0.receive() {
                let message = ElementMessage::decode(&bytes);
                return Ok(Some((from, message.ok_or(TransportError::Damaged(from))?)));
            }
            match wait {
                MessageWait::No => return Ok(None),
                MessageWait::Yes if look < LOOKS => std::thread::yield_now(),
                // MPI has no wait that ends for any message without its progress thread.
                MessageWait::Yes => std::thread::sleep(std::time::Duration::from_micros(50)),
            }
        }
        Ok(None)
    }
}
