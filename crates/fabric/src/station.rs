//! One queue with one server: a direction of a link, or a switch.

use crate::topology::StationFigures;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use terrace_types::BytesPerSec;

/// Which of the waiting messages is served next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceOrder {
    /// The one that came first.
    #[default]
    FirstCome,
    /// By the weights of the traffic classes: start-time fair queueing (Goyal, Vin and Cheng,
    /// SIGCOMM 1996). A class that waits gets at least its share of the bytes.
    WeightedFair,
}

/// What a queue has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StationCounters {
    /// Messages that were served.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Picoseconds in which the server sent bytes.
    pub busy_ps: u64,
    /// Picoseconds that messages waited before they were served, all together.
    pub queued_ps: u64,
    /// Messages that waited at once, at most.
    pub longest_queue: usize,
}

/// Picoseconds that `bytes` take; 0 where there is no limit.
pub(crate) fn transmit_ps(bytes: u64, bandwidth: Option<BytesPerSec>) -> u64 {
    let Some(bandwidth) = bandwidth else { return 0 };
    let ps = u128::from(bytes) * 1_000_000_000_000 / u128::from(bandwidth.get().max(1));
    u64::try_from(ps).unwrap_or(u64::MAX)
}

/// A message at a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitingMessage {
    /// Virtual time at which its service begins; 0 where the first to come is served first.
    pub start_tag: u128,
    /// Order of arrival at this queue.
    pub sequence: u64,
    pub slot: usize,
    pub arrived_ps: u64,
    pub bytes: u64,
}

/// A message whose service begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceStart {
    pub slot: usize,
    pub queued_ps: u64,
    /// When its last byte has been sent.
    pub ends_ps: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Station {
    pub figures: StationFigures,
    pub counters: StationCounters,
    busy: bool,
    waiting: BinaryHeap<Reverse<WaitingMessage>>,
    arrivals: u64,
    /// Start tag of the message that is, or was last, in service.
    virtual_time: u128,
    /// Finish tag of each class's last message.
    finish_tags: Vec<u128>,
}

impl Station {
    pub fn new(figures: StationFigures, classes: usize) -> Self {
        Self {
            figures,
            counters: StationCounters::default(),
            busy: false,
            waiting: BinaryHeap::new(),
            arrivals: 0,
            virtual_time: 0,
            finish_tags: vec![0; classes],
        }
    }

    /// A message arrives; its service begins at once where the server is idle.
    pub fn arrive(
        &mut self,
        mut message: WaitingMessage,
        share: Option<(usize, u32)>,
    ) -> Option<ServiceStart> {
        message.sequence = self.arrivals;
        self.arrivals += 1;
        if let Some((class, weight)) = share {
            let finish = &mut self.finish_tags[class];
            message.start_tag = self.virtual_time.max(*finish);
            // Shifted so that large weights lose nothing to rounding.
            *finish = message.start_tag + (u128::from(message.bytes) << 32) / u128::from(weight);
        }
        if self.busy {
            self.waiting.push(Reverse(message));
            self.counters.longest_queue = self.counters.longest_queue.max(self.waiting.len());
            return None;
        }
        Some(self.serve(message, message.arrived_ps))
    }

    /// The service of a message has ended; that of the next one begins.
    pub fn finish(&mut self, now_ps: u64) -> Option<ServiceStart> {
        self.busy = false;
        let Reverse(next) = self.waiting.pop()?;
        Some(self.serve(next, now_ps))
    }

    fn serve(&mut self, message: WaitingMessage, now_ps: u64) -> ServiceStart {
        let takes_ps = transmit_ps(message.bytes, self.figures.bandwidth);
        let queued_ps = now_ps - message.arrived_ps;
        self.busy = true;
        self.virtual_time = message.start_tag;
        self.counters.messages += 1;
        self.counters.bytes = self.counters.bytes.saturating_add(message.bytes);
        self.counters.busy_ps = self.counters.busy_ps.saturating_add(takes_ps);
        self.counters.queued_ps = self.counters.queued_ps.saturating_add(queued_ps);
        let ends_ps = now_ps.saturating_add(takes_ps);
        ServiceStart { slot: message.slot, queued_ps, ends_ps }
    }
}
