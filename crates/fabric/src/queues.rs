//! Messages in flight over a fabric.

use crate::station::{transmit_ps, ServiceOrder, Station, StationCounters, WaitingMessage};
use crate::topology::{FabricTopology, VertexId};
use crate::FabricError;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use terrace_types::BytesPerSec;

/// Whose traffic a message is; quality of service goes by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TrafficClass(pub u16);

/// What a traffic class gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassShare {
    /// Its part of a busy link, against the weights of the other classes there.
    pub weight: u32,
    /// Bytes a second that it may send from each endpoint at most; `None`: no limit. Its messages
    /// pass in the order in which they are submitted.
    pub cap: Option<BytesPerSec>,
}

impl Default for ClassShare {
    fn default() -> Self {
        Self { weight: 1, cap: None }
    }
}

/// A message. Messages of equal time are served in the order of sender, then `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricMessage {
    /// Chosen by the sender, unique among its messages in flight.
    pub id: u64,
    /// Whose traffic it is; classes without a [`ClassShare`] have the default one.
    pub class: TrafficClass,
    /// The endpoint that sends it.
    pub from: VertexId,
    /// The endpoint that gets it.
    pub to: VertexId,
    /// Its size with all headers, bytes.
    pub bytes: u64,
}

/// A message that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FabricDelivery {
    /// The message.
    pub message: FabricMessage,
    /// When it was submitted, picoseconds.
    pub sent_ps: u64,
    /// When its last byte arrived, picoseconds.
    pub arrived_ps: u64,
    /// How long it waited in queues and for its class's cap, picoseconds.
    pub queued_ps: u64,
}

/// What happens next. Ordered by time; at one time servers become free before messages arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Finish { station: usize },
    Arrive { from: VertexId, id: u64, slot: usize },
}

#[derive(Debug, Clone)]
struct InFlight {
    message: FabricMessage,
    sent_ps: u64,
    queued_ps: u64,
    route: Arc<[usize]>,
    /// Queues of the route that it has passed or is in.
    passed: usize,
}

/// A fabric with its messages in flight, at some time.
#[derive(Debug, Clone)]
pub struct FabricQueues {
    topology: FabricTopology,
    order: ServiceOrder,
    shares: Vec<ClassShare>,
    stations: Vec<Station>,
    routes: HashMap<(VertexId, VertexId), Arc<[usize]>>,
    in_flight: Vec<Option<InFlight>>,
    free_slots: Vec<usize>,
    events: BinaryHeap<Reverse<(u64, Happening)>>,
    /// When a capped class may send from an endpoint again.
    next_send_ps: HashMap<(TrafficClass, VertexId), u64>,
    now_ps: u64,
}

impl FabricQueues {
    /// An empty fabric at time 0. `shares` are those of classes 0, 1, ...
    ///
    /// # Errors
    /// [`FabricError::NoShare`].
    pub fn new(
        topology: FabricTopology,
        order: ServiceOrder,
        shares: Vec<ClassShare>,
    ) -> Result<Self, FabricError> {
        for (class, share) in shares.iter().enumerate().take(usize::from(u16::MAX) + 1) {
            if share.weight == 0 || share.cap.is_some_and(|cap| cap.get() == 0) {
                return Err(FabricError::NoShare { class: class as u16 });
            }
        }
        // One more for all classes that have no share of their own.
        let classes = shares.len() + 1;
        let stations = (0..topology.station_count())
            .map(|station| Station::new(topology.station(station), classes))
            .collect();
        Ok(Self {
            topology,
            order,
            shares,
            stations,
            routes: HashMap::new(),
            in_flight: Vec::new(),
            free_slots: Vec::new(),
            events: BinaryHeap::new(),
            next_send_ps: HashMap::new(),
            now_ps: 0,
        })
    }

    /// The fabric's description.
    #[must_use]
    pub fn topology(&self) -> &FabricTopology {
        &self.topology
    }

    /// The time up to which everything has happened, picoseconds.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// When something happens next, picoseconds; `None`: nothing is in flight.
    #[must_use]
    pub fn next_event_ps(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time_ps, _))| *time_ps)
    }

    /// What the queue `station` has done so far (see [`FabricTopology::station_name`]).
    #[must_use]
    pub fn counters(&self, station: usize) -> Option<StationCounters> {
        self.stations.get(station).map(|station| station.counters)
    }

    /// Sends a message at `sent_ps`, or when its class's cap allows it.
    ///
    /// # Errors
    /// [`FabricError::NoRoute`], [`FabricError::SentInPast`]; nothing is sent then.
    pub fn submit(&mut self, message: FabricMessage, sent_ps: u64) -> Result<(), FabricError> {
        if sent_ps < self.now_ps {
            let (id, now_ps) = (message.id, self.now_ps);
            return Err(FabricError::SentInPast { id, sent_ps, now_ps });
        }
        let route = self.find_route(message.from, message.to)?;
        let enters_ps = self.shape(&message, sent_ps);
        let queued_ps = enters_ps - sent_ps;
        let flight = InFlight { message, sent_ps, queued_ps, route, passed: 0 };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.in_flight[slot] = Some(flight);
                slot
            }
            None => {
                self.in_flight.push(Some(flight));
                self.in_flight.len() - 1
            }
        };
        self.schedule_arrival(enters_ps, &message, slot);
        Ok(())
    }

    /// Lets everything happen before `until_ps`; appends what arrives to `deliveries`, in the order
    /// of time.
    pub fn advance(&mut self, until_ps: u64, deliveries: &mut Vec<FabricDelivery>) {
        while let Some(Reverse((time_ps, happening))) = self.events.peek().copied() {
            if time_ps >= until_ps {
                break;
            }
            self.events.pop();
            match happening {
                Happening::Finish { station } => {
                    if let Some(start) = self.stations[station].finish(time_ps) {
                        self.begin_service(station, start);
                    }
                }
                Happening::Arrive { slot, .. } => deliveries.extend(self.arrive(slot, time_ps)),
            }
        }
        self.now_ps = self.now_ps.max(until_ps);
    }

    fn find_route(&mut self, from: VertexId, to: VertexId) -> Result<Arc<[usize]>, FabricError> {
        if let Some(route) = self.routes.get(&(from, to)) {
            return Ok(route.clone());
        }
        let route: Arc<[usize]> = self.topology.route(from, to)?.into();
        self.routes.insert((from, to), route.clone());
        Ok(route)
    }

    /// When a message enters the fabric: a capped class's messages leave an endpoint at its rate.
    fn shape(&mut self, message: &FabricMessage, sent_ps: u64) -> u64 {
        let cap = self.shares.get(usize::from(message.class.0)).and_then(|share| share.cap);
        if cap.is_none() {
            return sent_ps;
        }
        let next = self.next_send_ps.entry((message.class, message.from)).or_insert(0);
        let enters_ps = sent_ps.max(*next);
        *next = enters_ps.saturating_add(transmit_ps(message.bytes, cap));
        enters_ps
    }

    fn schedule_arrival(&mut self, time_ps: u64, message: &FabricMessage, slot: usize) {
        let happening = Happening::Arrive { from: message.from, id: message.id, slot };
        self.events.push(Reverse((time_ps, happening)));
    }

    /// A message comes to its next queue, or to its receiver.
    fn arrive(&mut self, slot: usize, time_ps: u64) -> Option<FabricDelivery> {
        let flight = self.in_flight[slot].as_mut()?;
        let message = flight.message;
        let Some(station) = flight.route.get(flight.passed).copied() else {
            let (sent_ps, queued_ps) = (flight.sent_ps, flight.queued_ps);
            self.in_flight[slot] = None;
            self.free_slots.push(slot);
            return Some(FabricDelivery { message, sent_ps, arrived_ps: time_ps, queued_ps });
        };
        flight.passed += 1;
        let share = (self.order == ServiceOrder::WeightedFair).then(|| {
            let class = usize::from(message.class.0).min(self.shares.len());
            (class, self.shares.get(class).copied().unwrap_or_default().weight)
        });
        let waiting = WaitingMessage {
            start_tag: 0,
            sequence: 0,
            slot,
            arrived_ps: time_ps,
            bytes: message.bytes,
        };
        if let Some(start) = self.stations[station].arrive(waiting, share) {
            self.begin_service(station, start);
        }
        None
    }

    fn begin_service(&mut self, station: usize, start: crate::station::ServiceStart) {
        self.events.push(Reverse((start.ends_ps, Happening::Finish { station })));
        let Some(flight) = self.in_flight[start.slot].as_mut() else { return };
        flight.queued_ps = flight.queued_ps.saturating_add(start.queued_ps);
        let message = flight.message;
        let arrives_ps = start.ends_ps.saturating_add(self.stations[station].figures.latency_ps);
        self.schedule_arrival(arrives_ps, &message, start.slot);
    }
}
