//! Loads of a fabric's queues in windows of time, in closed form: how long messages wait, and what
//! each pair of endpoints may send where a link or switch is full.
//!
//! [`crate::FabricQueues`] follows each message; this takes counts of messages in a window. Waiting
//! times are those of an M/G/1 queue (Pollaczek and Khinchine) at each queue on the way, but no
//! message waits for more others than are under way, which Little's law tells. Where pairs want
//! more than a queue serves, they get max-min fair shares by weight (D. Bertsekas and R. Gallager,
//! "Data Networks", 1992, section 6.5.2). Sums are of whole numbers, so that results do not depend
//! on the order of pairs.

use crate::topology::{FabricTopology, VertexId};
use crate::FabricError;
use std::sync::Arc;
use terrace_types::BytesPerSec;

/// Utilisation beyond which the closed form is not followed: waits grow without bound there, while
/// shares keep the load at what the queue serves. At 0.95 a message waits 9.5 services.
const MOST_UTILISATION: f64 = 0.95;
/// A pair that used at least so many percent of what it may send wants more.
const WANTS_MORE_PERCENT: u128 = 90;
/// How much more than in the last window a pair may send that was not held back, percent.
const GROWTH_PERCENT: u128 = 110;

/// What one pair of endpoints sent in a window: requests, and replies on the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairTraffic {
    /// Who asks.
    pub from: VertexId,
    /// Who answers.
    pub to: VertexId,
    /// Its part of a full queue against the weights of other pairs.
    pub weight: u32,
    /// Requests, of which each has a reply.
    pub messages: u64,
    /// Bytes of all requests.
    pub request_bytes: u64,
    /// Bytes of all replies.
    pub reply_bytes: u64,
    /// From a request to its reply, waits included, picoseconds.
    pub round_trip_ps: u64,
}

/// What a pair finds in the next window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PairOutlook {
    /// Mean time that a request and its reply wait in queues, picoseconds.
    pub wait_ps: u64,
    /// It may send so many 1024ths of its bytes in this window; `None`: as many as it likes.
    pub limit: Option<u64>,
}

/// The limit of [`PairOutlook`] that is as much as in this window.
pub const SAME_TRAFFIC: u64 = 1024;

/// A queue on the way of a pair, and which of its messages pass it.
type PairRoute = Arc<[(usize, bool)]>;

#[derive(Debug, Clone)]
struct PairState {
    ends: (VertexId, VertexId),
    route: PairRoute,
    /// The queue that held it back, and the bytes that it got there.
    held: Option<(usize, u128)>,
}

/// What passed one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueLoad {
    /// Messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sum of bytes squared over messages, by pair.
    square: u128,
    /// Sum of messages times their round trips, picoseconds.
    under_way_ps: u128,
    /// Sum of messages times what they wait here, picoseconds; of totals only.
    pub waited_ps: u128,
}

/// The queues of a fabric, window by window.
#[derive(Debug, Clone)]
pub struct FabricLoads {
    topology: FabricTopology,
    pairs: Vec<PairState>,
    /// Pairs whose messages pass each queue; one with both directions there is named once.
    members: Vec<Vec<usize>>,
    loads: Vec<QueueLoad>,
    totals: Vec<QueueLoad>,
}

impl FabricLoads {
    /// An empty fabric.
    #[must_use]
    pub fn new(topology: FabricTopology) -> Self {
        let loads = vec![QueueLoad::default(); topology.station_count()];
        let members = vec![Vec::new(); loads.len()];
        Self { topology, pairs: Vec::new(), members, totals: loads.clone(), loads }
    }

    /// The fabric's description.
    #[must_use]
    pub fn topology(&self) -> &FabricTopology {
        &self.topology
    }

    /// What passed each queue so far (see [`FabricTopology::station_name`]).
    #[must_use]
    pub fn totals(&self) -> &[QueueLoad] {
        &self.totals
    }

    /// A window of `window_ps` has passed with this traffic; what each pair finds in the next one.
    /// Pairs must come in the same order each time.
    ///
    /// # Errors
    /// [`FabricError::NoRoute`].
    pub fn pass(
        &mut self,
        window_ps: u64,
        traffic: &[PairTraffic],
    ) -> Result<Vec<PairOutlook>, FabricError> {
        self.find_routes(traffic)?;
        self.loads.fill(QueueLoad::default());
        for (pair, state) in traffic.iter().zip(&self.pairs) {
            for (station, reply) in state.route.iter() {
                let bytes = if *reply { pair.reply_bytes } else { pair.request_bytes };
                for load in [&mut self.loads[*station], &mut self.totals[*station]] {
                    load.messages = load.messages.saturating_add(pair.messages);
                    load.bytes = load.bytes.saturating_add(bytes);
                    let square = u128::from(bytes).pow(2) / u128::from(pair.messages.max(1));
                    load.square = load.square.saturating_add(square);
                    let under_way = u128::from(pair.messages) * u128::from(pair.round_trip_ps);
                    load.under_way_ps = load.under_way_ps.saturating_add(under_way);
                }
            }
        }
        for station in 0..self.loads.len() {
            let wait = u128::from(self.mean_wait_ps(station, window_ps));
            let waited = u128::from(self.loads[station].messages) * wait;
            let total = &mut self.totals[station];
            total.waited_ps = total.waited_ps.saturating_add(waited);
        }
        let mut outlooks: Vec<PairOutlook> = self
            .pairs
            .iter()
            .map(|state| {
                let wait = |(station, _): &(usize, bool)| self.mean_wait_ps(*station, window_ps);
                PairOutlook { wait_ps: state.route.iter().map(wait).sum(), limit: None }
            })
            .collect();
        self.share_full_queues(window_ps, traffic, &mut outlooks);
        Ok(outlooks)
    }

    fn find_routes(&mut self, traffic: &[PairTraffic]) -> Result<(), FabricError> {
        let known = self.pairs.len() == traffic.len()
            && self.pairs.iter().zip(traffic).all(|(state, p)| state.ends == (p.from, p.to));
        if known {
            return Ok(());
        }
        self.pairs.clear();
        self.members.iter_mut().for_each(Vec::clear);
        for pair in traffic {
            let there = self.topology.route(pair.from, pair.to)?;
            let back = self.topology.route(pair.to, pair.from)?;
            let there = there.into_iter().map(|station| (station, false));
            let back = back.into_iter().map(|station| (station, true));
            let route: PairRoute = there.chain(back).collect();
            for (station, _) in route.iter() {
                let members = &mut self.members[*station];
                if members.last() != Some(&self.pairs.len()) {
                    members.push(self.pairs.len());
                }
            }
            self.pairs.push(PairState { ends: (pair.from, pair.to), route, held: None });
        }
        Ok(())
    }

    /// Bytes that a queue serves in a window; `None`: no limit.
    fn capacity_bytes(&self, station: usize, window_ps: u64) -> Option<u128> {
        let rate: BytesPerSec = self.topology.station(station).bandwidth?;
        Some((u128::from(rate.get()) * u128::from(window_ps) / 1_000_000_000_000).max(1))
    }

    /// Pollaczek and Khinchine: `lambda E[S^2] / (2 (1 - rho))`, whole picoseconds.
    fn mean_wait_ps(&self, station: usize, window_ps: u64) -> u64 {
        let Some(capacity) = self.capacity_bytes(station, window_ps) else { return 0 };
        let load = self.loads[station];
        let utilisation = (load.bytes as f64 / capacity as f64).min(MOST_UTILISATION);
        // A byte's service is window / capacity; lambda is over the same window. Where more comes
        // than is served, what is served counts.
        let served = (capacity as f64 / (load.bytes as f64).max(1.0)).min(1.0);
        let squares = load.square as f64 * served / (capacity as f64).powi(2);
        let open = squares * window_ps as f64 / (2.0 * (1.0 - utilisation));
        let others = (load.under_way_ps as f64 / window_ps.max(1) as f64 - 1.0).max(0.0);
        let service = load.bytes as f64 / load.messages.max(1) as f64 * window_ps as f64;
        open.min(others * service / capacity as f64) as u64
    }

    /// Limits of pairs at queues that cannot serve all that they want.
    fn share_full_queues(
        &mut self,
        window_ps: u64,
        traffic: &[PairTraffic],
        outlooks: &mut [PairOutlook],
    ) {
        let mut held = vec![None; self.pairs.len()];
        for station in 0..self.loads.len() {
            let Some(capacity) = self.capacity_bytes(station, window_ps) else { continue };
            if u128::from(self.loads[station].bytes) * 2 < capacity {
                continue;
            }
            let wants = self.wants_at(station, traffic);
            let shares = share_fairly(capacity, &wants);
            let left = capacity.saturating_sub(shares.iter().sum());
            for (want, share) in wants.iter().zip(shares) {
                let bytes = if share < want.bytes {
                    share
                } else if want.held && left * 2 < capacity {
                    // It gets what it wants, and may take what is left: without a limit it could
                    // fill the queue many times over in the next window.
                    share + left
                } else {
                    continue;
                };
                let limit = bytes * u128::from(SAME_TRAFFIC) / want.used.max(1);
                let limit = u64::try_from(limit).unwrap_or(u64::MAX);
                let outlook = &mut outlooks[want.pair];
                if outlook.limit.is_none_or(|least| limit < least) {
                    outlook.limit = Some(limit);
                    held[want.pair] = Some((station, bytes));
                }
            }
        }
        for (state, held) in self.pairs.iter_mut().zip(held) {
            state.held = held;
        }
    }

    fn wants_at(&self, station: usize, traffic: &[PairTraffic]) -> Vec<QueueWant> {
        let mut wants = Vec::new();
        for index in &self.members[station] {
            let (pair, state) = (&traffic[*index], &self.pairs[*index]);
            let mut used = 0;
            for (_, reply) in state.route.iter().filter(|(at, _)| *at == station) {
                used += u128::from(if *reply { pair.reply_bytes } else { pair.request_bytes });
            }
            if used == 0 {
                continue;
            }
            let limit = state.held.filter(|(at, _)| *at == station).map(|(_, bytes)| bytes);
            let bytes = match limit {
                Some(limit) if used * 100 >= limit * WANTS_MORE_PERCENT => u128::MAX,
                _ => used * GROWTH_PERCENT / 100,
            };
            let held = limit.is_some();
            let weight = pair.weight.max(1);
            wants.push(QueueWant { pair: *index, weight, used, bytes, held });
        }
        wants
    }
}

/// What a pair wants of one queue.
#[derive(Debug, Clone, Copy)]
struct QueueWant {
    pair: usize,
    weight: u32,
    /// Bytes in this window.
    used: u128,
    /// Bytes that it would send in the next one.
    bytes: u128,
    /// This queue limited it in this window.
    held: bool,
}

/// Max-min fair shares of `capacity` by weight: who wants less than its share gets what it wants,
/// the others divide the rest.
fn share_fairly(capacity: u128, wants: &[QueueWant]) -> Vec<u128> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    let level = |want: &QueueWant| want.bytes / u128::from(want.weight);
    order.sort_by_key(|index| level(&wants[*index]));
    let (mut left, mut shares) = (capacity, vec![0; wants.len()]);
    let mut weights: u128 = wants.iter().map(|want| u128::from(want.weight)).sum();
    let mut rest = order.into_iter().peekable();
    while let Some(index) = rest.next_if(|index| level(&wants[*index]) <= left / weights.max(1)) {
        shares[index] = wants[index].bytes;
        left -= wants[index].bytes.min(left);
        weights -= u128::from(wants[index].weight);
    }
    for index in rest {
        shares[index] = left * u128::from(wants[index].weight) / weights.max(1);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkDescription, VertexDescription, VertexKind};
    use terrace_types::Nanos;

    /// Hosts 0 to `hosts`, two pools, one switch; the link from the switch to pool 0 has 1 GB/s.
    fn star(hosts: usize) -> FabricTopology {
        let endpoint = |name: String| VertexDescription { name, kind: VertexKind::Endpoint };
        let mut vertices: Vec<_> = (0..hosts).map(|h| endpoint(format!("h{h}"))).collect();
        vertices.extend((0..2).map(|p| endpoint(format!("p{p}"))));
        let kind = VertexKind::Switch { latency: Nanos(0), bandwidth: None };
        vertices.push(VertexDescription { name: "s".to_owned(), kind });
        let links = (0..hosts + 2)
            .map(|index| LinkDescription {
                ends: [vertices[index].name.clone(), "s".to_owned()],
                latency: Nanos(10),
                bandwidth: (index == hosts).then_some(BytesPerSec(1_000_000_000)),
            })
            .collect();
        FabricTopology::new(vertices, links).unwrap()
    }

    const WINDOW: u64 = 10_000_000;

    fn pair(from: u32, to: u32, messages: u64) -> PairTraffic {
        let (from, to) = (VertexId(from), VertexId(to));
        let (request_bytes, reply_bytes) = (16 * messages, 80 * messages);
        let round_trip_ps = 1_000_000;
        PairTraffic { from, to, weight: 1, messages, request_bytes, reply_bytes, round_trip_ps }
    }

    #[test]
    fn an_idle_or_unlimited_fabric_delays_nobody() {
        let mut loads = FabricLoads::new(star(2));
        let outlooks = loads.pass(WINDOW, &[pair(0, 2, 0), pair(1, 3, 1_000_000)]).unwrap();
        assert_eq!(outlooks, [PairOutlook::default(); 2]);
    }

    #[test]
    fn waits_are_those_of_the_closed_form() {
        let mut loads = FabricLoads::new(star(1));
        // 10 us at 1 GB/s are 10,000 bytes: 75 replies of 80 bytes use 0.6, 75 requests 0.12.
        let outlook = loads.pass(WINDOW, &[pair(0, 1, 75)]).unwrap()[0];
        let reply = crate::analysis::mean_wait_md1(0.6, 80_000.0).unwrap();
        let request = crate::analysis::mean_wait_md1(0.12, 16_000.0).unwrap();
        assert!((outlook.wait_ps as f64 - reply - request).abs() < 3.0, "{outlook:?}");
        assert_eq!(outlook.limit, None);
        // With one message under way at a time nobody waits.
        let alone = PairTraffic { round_trip_ps: WINDOW / 75, ..pair(0, 1, 75) };
        assert_eq!(loads.pass(WINDOW, &[alone]).unwrap()[0].wait_ps, 0);
    }

    /// Two greedy pairs and a modest one at a full link: it gets what it wants, they divide the
    /// rest by weight, and all of them use what there is.
    #[test]
    fn a_full_link_is_shared_by_weight_and_released() {
        let mut loads = FabricLoads::new(star(3));
        let mut sent = [400_u64, 400, 10];
        let mut share = [0; 3];
        for _ in 0..10 {
            let mut traffic = [0, 1, 2].map(|h| pair(h as u32, 3, sent[h]));
            traffic[1].weight = 3;
            share = traffic.map(|p| p.reply_bytes);
            let outlooks = loads.pass(WINDOW, &traffic).unwrap();
            for (sent, outlook) in sent.iter_mut().zip(&outlooks).take(2) {
                // Greedy: 400 messages unless it is held back.
                *sent = outlook.limit.map_or(400, |limit| (*sent * limit / 1024).min(400));
            }
            assert_eq!(outlooks[2].limit, None);
        }
        let all: u64 = share.iter().sum();
        assert!((9_000..=10_000).contains(&all), "{share:?}");
        assert!((2.8..3.2).contains(&(share[1] as f64 / share[0] as f64)), "{share:?}");
        // When one leaves, the other has the link for itself again.
        let outlooks = loads.pass(WINDOW, &[pair(0, 3, 20), pair(1, 3, 0), pair(2, 3, 0)]).unwrap();
        assert_eq!(outlooks[0].limit, None);
    }

    #[test]
    fn shares_are_max_min_fair() {
        let want = |weight, bytes| QueueWant { pair: 0, weight, used: 1, bytes, held: false };
        let wants = [want(1, 5), want(1, u128::MAX), want(2, u128::MAX), want(1, 100)];
        assert_eq!(share_fairly(105, &wants), [5, 25, 50, 25]);
        assert_eq!(share_fairly(10, &[want(1, 3), want(1, 4)]), [3, 4]);
    }
}
