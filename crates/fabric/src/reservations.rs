//! Messages whose time of arrival is known as soon as they are sent: each queue on the way is a
//! calendar of busy times, and a message takes the first time that is free for it.
//!
//! [`crate::FabricQueues`] needs messages in the order of time. This takes them in any order, for
//! senders that run ahead of each other: a message that was sent earlier takes what is free before
//! those that were submitted before it. It never moves them, so where a queue is full, order of
//! service is order of submission.

use crate::station::transmit_ps;
use crate::topology::{FabricTopology, VertexId};
use crate::FabricError;
use std::collections::HashMap;
use std::sync::Arc;

/// Busy times of one queue, which neither overlap nor touch, in order: begin and end, picoseconds.
#[derive(Debug, Clone, Default)]
struct Calendar(Vec<(u64, u64)>);

impl Calendar {
    /// Takes `takes_ps` from the first time on that is free, at `from_ps` or later; when it begins.
    fn reserve(&mut self, from_ps: u64, takes_ps: u64) -> u64 {
        if takes_ps == 0 {
            return from_ps;
        }
        let mut at = self.0.partition_point(|(_, end)| *end <= from_ps);
        let mut begin = from_ps;
        while let Some((busy_from, busy_until)) = self.0.get(at) {
            if *busy_from >= begin.saturating_add(takes_ps) {
                break;
            }
            begin = begin.max(*busy_until);
            at += 1;
        }
        let end = begin.saturating_add(takes_ps);
        let touches_before = at > 0 && self.0[at - 1].1 == begin;
        let touches_after = self.0.get(at).is_some_and(|(from, _)| *from == end);
        match (touches_before, touches_after) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = end,
            (false, true) => self.0[at].0 = begin,
            (false, false) => self.0.insert(at, (begin, end)),
        }
        begin
    }

    fn forget_before(&mut self, time_ps: u64) {
        let gone = self.0.partition_point(|(_, end)| *end < time_ps);
        self.0.drain(..gone);
    }
}

/// A fabric whose queues are reserved ahead.
#[derive(Debug, Clone)]
pub struct FabricReservations {
    topology: FabricTopology,
    calendars: Vec<Calendar>,
    routes: HashMap<(VertexId, VertexId), Arc<[usize]>>,
    /// Picoseconds between two messages at an endpoint's links at least.
    message_gap_ps: u64,
    submitted: u64,
}

/// Messages between two prunings of calendars: bounds their length, costs nothing to speak of.
const PRUNE_EVERY: u64 = 1024;

impl FabricReservations {
    /// An empty fabric. An endpoint sends, and takes, a message each `message_gap_ps` at most.
    #[must_use]
    pub fn new(topology: FabricTopology, message_gap_ps: u64) -> Self {
        let calendars = vec![Calendar::default(); topology.station_count()];
        Self { topology, calendars, routes: HashMap::new(), message_gap_ps, submitted: 0 }
    }

    /// The fabric's description.
    #[must_use]
    pub fn topology(&self) -> &FabricTopology {
        &self.topology
    }

    /// Sends `bytes` at `sent_ps`; when the last of them arrives, picoseconds. Nothing is sent any
    /// more before `settled_ps`.
    ///
    /// # Errors
    /// [`FabricError::NoRoute`].
    pub fn pass(
        &mut self,
        (from, to): (VertexId, VertexId),
        bytes: u64,
        sent_ps: u64,
        settled_ps: u64,
    ) -> Result<u64, FabricError> {
        let route = match self.routes.get(&(from, to)) {
            Some(route) => route.clone(),
            None => {
                let route: Arc<[usize]> = self.topology.route(from, to)?.into();
                self.routes.insert((from, to), route.clone());
                route
            }
        };
        self.submitted += 1;
        if self.submitted % PRUNE_EVERY == 0 {
            self.calendars.iter_mut().for_each(|calendar| calendar.forget_before(settled_ps));
        }
        let mut time_ps = sent_ps;
        for (place, &station) in route.iter().enumerate() {
            let figures = self.topology.station(station);
            let mut takes_ps = transmit_ps(bytes, figures.bandwidth);
            if place == 0 || place + 1 == route.len() {
                takes_ps = takes_ps.max(self.message_gap_ps);
            }
            let begin = self.calendars[station].reserve(time_ps, takes_ps);
            time_ps = begin.saturating_add(takes_ps).saturating_add(figures.latency_ps);
        }
        Ok(time_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        FabricMessage, FabricQueues, LinkDescription, ServiceOrder, TrafficClass,
        VertexDescription, VertexKind,
    };
    use terrace_types::{BytesPerSec, Nanos};

    /// Endpoints around one switch.
    fn star(ends: u32) -> FabricTopology {
        let end = |n: u32| VertexDescription { name: format!("e{n}"), kind: VertexKind::Endpoint };
        let kind = VertexKind::Switch { latency: Nanos(50), bandwidth: None };
        let mut vertices: Vec<_> = (0..ends).map(end).collect();
        vertices.push(VertexDescription { name: "s".into(), kind });
        let links = (0..ends).map(|n| LinkDescription {
            ends: [format!("e{n}"), "s".into()],
            latency: Nanos(25),
            bandwidth: Some(BytesPerSec(10_000_000_000)),
        });
        FabricTopology::new(vertices, links.collect()).unwrap()
    }

    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state >> 16
    }

    #[test]
    fn messages_in_the_order_of_time_arrive_as_in_queues() {
        // Two senders to a receiver each, at random times, apart at the switch as well.
        let mut queues = FabricQueues::new(star(4), ServiceOrder::FirstCome, Vec::new()).unwrap();
        let mut reserved = FabricReservations::new(star(4), 0);
        let (mut random, mut now) = (7, 0);
        let mut expected = Vec::new();
        for id in 0..500 {
            now += next(&mut random) % 30_000;
            let from = VertexId((next(&mut random) % 2) as u32);
            let to = VertexId(from.0 + 2);
            let bytes = 1 + next(&mut random) % 300;
            let class = TrafficClass::default();
            queues.submit(FabricMessage { id, class, from, to, bytes }, now).unwrap();
            expected.push(reserved.pass((from, to), bytes, now, now).unwrap());
        }
        let mut deliveries = Vec::new();
        queues.advance(u64::MAX, &mut deliveries);
        assert_eq!(deliveries.len(), 500);
        for delivery in deliveries {
            assert_eq!(delivery.arrived_ps, expected[delivery.message.id as usize]);
        }
    }

    #[test]
    fn a_receiver_takes_messages_at_its_rate() {
        let mut fabric = FabricReservations::new(star(9), 20_000);
        let arrivals: Vec<u64> =
            (0..8).map(|n| fabric.pass((VertexId(n), VertexId(8)), 100, 0, 0).unwrap()).collect();
        // 100 bytes take 10 ns, but two messages are 20 ns apart: out, 100 ns of latency, and in.
        let expected: Vec<u64> = (0..8).map(|n| 20_000 + 100_000 + 20_000 * (n + 1)).collect();
        assert_eq!(arrivals, expected);
    }

    #[test]
    fn a_message_sent_earlier_takes_the_time_that_is_free_before() {
        let mut fabric = FabricReservations::new(star(3), 0);
        let mut send = |at| fabric.pass((VertexId(0), VertexId(1)), 100, at, 0).unwrap();
        // 10 ns on each of two links.
        assert_eq!(send(1_000_000), 1_120_000);
        assert_eq!(send(500_000), 620_000);
        assert_eq!(send(995_000), 1_130_000);
    }

    #[test]
    fn busy_times_never_overlap_and_nothing_waits_for_a_free_queue() {
        let mut random = 11;
        let mut calendar = Calendar::default();
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for _ in 0..2000 {
            let (from, takes) = (next(&mut random) % 40_000, 1 + next(&mut random) % 20);
            let begin = calendar.reserve(from, takes);
            assert!(begin >= from);
            let overlaps = |at: u64| taken.iter().any(|(a, b)| at < *b && *a < at + takes);
            assert!(!overlaps(begin));
            // The first free time is `from` or where a busy time ends.
            let ends = taken.iter().map(|(_, end)| *end);
            let first = ends.chain([from]).filter(|at| *at >= from && !overlaps(*at)).min();
            assert_eq!(first, Some(begin));
            taken.push((begin, begin + takes));
        }
        assert!(calendar.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }
}
