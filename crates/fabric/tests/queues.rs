//! Queues against theory, against a plain reference and against hand-computed times.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use terrace_fabric::analysis::{mean_wait_md1, solve_closed_network};
use terrace_fabric::*;
use terrace_types::{BytesPerSec, Nanos};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - uniform).ln() * mean
    }
}

fn endpoint(name: &str) -> VertexDescription {
    VertexDescription { name: name.to_owned(), kind: VertexKind::Endpoint }
}

fn switch(name: &str, latency_ns: u64) -> VertexDescription {
    let kind = VertexKind::Switch { latency: Nanos(latency_ns), bandwidth: None };
    VertexDescription { name: name.to_owned(), kind }
}

fn link(a: &str, b: &str, latency_ns: u64, bandwidth: Option<u64>) -> LinkDescription {
    LinkDescription {
        ends: [a.to_owned(), b.to_owned()],
        latency: Nanos(latency_ns),
        bandwidth: bandwidth.map(BytesPerSec),
    }
}

/// A host and a pool with one link: a byte takes a nanosecond.
fn pair(latency_ns: u64) -> FabricTopology {
    let link = link("host", "pool", latency_ns, Some(1_000_000_000));
    FabricTopology::new(vec![endpoint("host"), endpoint("pool")], vec![link]).unwrap()
}

/// Two hosts and two pools at two switches.
fn two_switches(bandwidth: Option<u64>) -> FabricTopology {
    let vertices = ["h0", "h1", "p0", "p1"].map(endpoint).into_iter();
    let vertices = vertices.chain([switch("s0", 10), switch("s1", 30)]).collect();
    let links = vec![
        link("h0", "s0", 1, bandwidth),
        link("s0", "h1", 2, bandwidth),
        link("s0", "s1", 5, bandwidth),
        link("p0", "s1", 3, bandwidth),
        link("s1", "p1", 4, bandwidth),
    ];
    FabricTopology::new(vertices, links).unwrap()
}

fn message(id: u64, class: u16, from: u32, to: u32, bytes: u64) -> FabricMessage {
    let (from, to) = (VertexId(from), VertexId(to));
    FabricMessage { id, class: TrafficClass(class), from, to, bytes }
}

fn deliver_all(fabric: &mut FabricQueues) -> Vec<FabricDelivery> {
    let mut deliveries = Vec::new();
    fabric.advance(u64::MAX, &mut deliveries);
    assert_eq!(fabric.next_event_ps(), None);
    deliveries
}

#[test]
fn a_lone_message_takes_latencies_and_the_time_of_its_bytes_on_every_link() {
    let topology = two_switches(Some(64_000_000_000));
    let (h0, h1, p1) = (VertexId(0), VertexId(1), VertexId(3));
    assert_eq!(topology.latency_ps(h0, p1), Ok(1000 * (1 + 10 + 5 + 30 + 4)));
    assert_eq!(topology.latency_ps(p1, h0), topology.latency_ps(h0, p1));
    assert_eq!(topology.latency_ps(h0, h1), Ok(1000 * (1 + 10 + 2)));
    assert_eq!(topology.route(h0, h0), Ok(vec![]));
    assert_eq!(topology.least_latency_ps(), Some(13_000));
    let names: Vec<String> =
        topology.route(p1, h1).unwrap().into_iter().map(|s| topology.station_name(s)).collect();
    assert_eq!(names, ["p1 > s1", "s1", "s1 > s0", "s0", "s0 > h1"]);
    let mut fabric = FabricQueues::new(topology, ServiceOrder::FirstCome, vec![]).unwrap();
    fabric.submit(message(0, 0, 0, 3, 64), 7).unwrap();
    let all = deliver_all(&mut fabric);
    assert_eq!((all[0].arrived_ps, all[0].queued_ps), (7 + 50_000 + 3 * 1000, 0));
}

#[test]
fn broken_fabrics_are_refused_by_name() {
    let refuse = |vertices: Vec<VertexDescription>, links| {
        FabricTopology::new(vertices, links).unwrap_err().to_string()
    };
    let abc = || vec![endpoint("a"), switch("b", 1), switch("c", 1)];
    let ab = || link("a", "b", 1, None);
    let bc = || link("b", "c", 1, None);
    for (error, expected) in [
        (refuse(abc(), vec![ab(), bc(), link("c", "a", 1, None)]), "link c - a closes a cycle"),
        (refuse(abc(), vec![ab(), ab(), bc()]), "link a - b closes a cycle"),
        (refuse(abc(), vec![link("a", "a", 1, None)]), "link a - a closes a cycle"),
        (refuse(abc(), vec![ab()]), "no link leads from \"a\" to \"c\""),
        (refuse(abc(), vec![link("a", "x", 1, None)]), "link a - x ends at \"x\""),
        (refuse(abc(), vec![ab(), link("b", "c", 1, Some(0))]), "b - c has a bandwidth of zero"),
        (refuse(abc(), vec![ab(), link("b", "c", u64::MAX, None)]), "b - c has a latency of"),
        (refuse(vec![endpoint("a"), endpoint("a")], vec![]), "called \"a\""),
        (refuse(vec![], vec![]), "has 0 hosts"),
    ] {
        assert!(error.contains(expected) && !error.contains('\n'), "{error}: {expected}");
    }
}

#[test]
fn what_cannot_be_carried_is_refused_and_nothing_is_sent() {
    let topology = two_switches(None);
    let shares = vec![ClassShare { weight: 0, cap: None }];
    let refused = FabricQueues::new(topology.clone(), ServiceOrder::FirstCome, shares);
    assert_eq!(refused.unwrap_err(), FabricError::NoShare { class: 0 });
    let mut fabric = FabricQueues::new(topology, ServiceOrder::FirstCome, vec![]).unwrap();
    for (from, to) in [(0, 4), (5, 0), (0, 99)] {
        let error = fabric.submit(message(1, 0, from, to, 1), 0).unwrap_err();
        assert!(matches!(error, FabricError::NoRoute { .. }), "{error}");
    }
    fabric.advance(1000, &mut Vec::new());
    let error = fabric.submit(message(1, 0, 0, 1, 1), 999).unwrap_err();
    assert_eq!(error, FabricError::SentInPast { id: 1, sent_ps: 999, now_ps: 1000 });
    assert_eq!(fabric.next_event_ps(), None);
    // An endpoint in the middle forwards nothing.
    let chain = ["a", "b", "c"].map(endpoint).to_vec();
    let links = vec![link("a", "b", 1, None), link("b", "c", 1, None)];
    let chain = FabricTopology::new(chain, links).unwrap();
    assert!(chain.route(VertexId(0), VertexId(2)).is_err());
    assert!(chain.route(VertexId(2), VertexId(1)).is_ok());
}

/// Mean wait in nanoseconds of `count` messages of 64 bytes that arrive at random, one byte a
/// nanosecond.
fn mean_wait_ns(utilisation: f64, count: u64, seed: u64) -> f64 {
    let mut fabric = FabricQueues::new(pair(20), ServiceOrder::FirstCome, vec![]).unwrap();
    let (mut chance, mut deliveries) = (Chance(seed), Vec::new());
    let (mut time_ps, mut wait_ps) = (0.0, 0.0);
    for id in 0..count {
        time_ps += chance.exponential(64_000.0 / utilisation);
        fabric.submit(message(id, 0, 0, 1, 64), time_ps as u64).unwrap();
        fabric.advance(time_ps as u64, &mut deliveries);
        wait_ps += deliveries.drain(..).map(|d| d.queued_ps as f64).sum::<f64>();
    }
    wait_ps += deliver_all(&mut fabric).iter().map(|d| d.queued_ps as f64).sum::<f64>();
    wait_ps / count as f64 / 1000.0
}

#[test]
fn a_link_with_random_arrivals_is_the_queue_m_d_1() {
    for (utilisation, count, seed) in
        [(0.3, 400_000, 1), (0.5, 400_000, 2), (0.8, 1_000_000, 3), (0.9, 2_000_000, 4)]
    {
        let expected = mean_wait_md1(utilisation, 64.0).unwrap();
        let found = mean_wait_ns(utilisation, count, seed);
        let off = found / expected - 1.0;
        assert!(off.abs() < 0.02, "seed {seed}, load {utilisation}: {found} ns for {expected}");
    }
    assert_eq!((mean_wait_md1(1.0, 64.0), mean_wait_md1(f64::NAN, 64.0)), (None, None));
}

/// Rounds a nanosecond of `customers` that each send a request and wait for the reply.
fn closed_throughput(customers: u64, rounds: u64, means: [f64; 2], seed: u64) -> f64 {
    let mut fabric = FabricQueues::new(pair(500), ServiceOrder::FirstCome, vec![]).unwrap();
    let (mut chance, mut deliveries) = (Chance(seed), Vec::new());
    let mut send = |fabric: &mut FabricQueues, id, from: u32, time_ps| {
        let bytes = chance.exponential(means[from as usize]).round() as u64;
        fabric.submit(message(id, 0, from, 1 - from, bytes), time_ps).unwrap();
    };
    for id in 0..customers {
        send(&mut fabric, id, 0, 0);
    }
    let (mut done, mut last_ps) = (0, 0);
    while done < rounds {
        let next_ps = fabric.next_event_ps().unwrap();
        fabric.advance(next_ps + 1, &mut deliveries);
        for delivery in deliveries.drain(..) {
            done += u64::from(delivery.message.to.0 == 0);
            last_ps = delivery.arrived_ps;
            send(&mut fabric, delivery.message.id, delivery.message.to.0, last_ps + 1);
        }
    }
    done as f64 / (last_ps as f64 / 1000.0)
}

#[test]
fn requests_and_replies_are_a_closed_queueing_network() {
    let means = [200.0, 400.0];
    for (customers, seed) in [(1, 1), (2, 2), (4, 3), (8, 4), (32, 5)] {
        // Both directions' latencies are times in which nobody waits for another.
        let expected = solve_closed_network(&means, 1000.0, customers).throughput;
        let found = closed_throughput(customers.into(), 200_000, means, seed);
        let off = found / expected - 1.0;
        assert!(off.abs() < 0.02, "seed {seed}, {customers}: {found} for {expected} a ns");
    }
}

/// Slow and obvious: of all messages the one that comes first to its next queue is served there,
/// after those that came before it.
fn reference(topology: &FabricTopology, sent: &[(FabricMessage, u64)]) -> BTreeMap<u64, u64> {
    let mut free_ps = vec![0; topology.station_count()];
    let mut moving: Vec<(u64, u32, u64, Vec<usize>, u64)> = sent
        .iter()
        .map(|(m, at)| (*at, m.from.0, m.id, topology.route(m.from, m.to).unwrap(), m.bytes))
        .collect();
    let mut arrived = BTreeMap::new();
    while let Some(first) = (0..moving.len()).min_by_key(|i| {
        let m = &moving[*i];
        (m.0, m.1, m.2)
    }) {
        let (time_ps, _, id, route, bytes) = &mut moving[first];
        if route.is_empty() {
            arrived.insert(*id, *time_ps);
            moving.swap_remove(first);
            continue;
        }
        let station = route.remove(0);
        let name = topology.station_name(station);
        // Links take a nanosecond a byte; switches are told by their names and take none.
        let takes_ps = if name.contains('>') { *bytes * 1000 } else { 0 };
        let ends_ps = (*time_ps).max(free_ps[station]) + takes_ps;
        free_ps[station] = ends_ps;
        *time_ps = ends_ps + latency_of(&name) * 1000;
    }
    arrived
}

fn latency_of(station: &str) -> u64 {
    match station {
        "s0" => 10,
        "s1" => 30,
        _ if station.contains("h0") => 1,
        _ if station.contains("h1") => 2,
        _ if station.contains("p0") => 3,
        _ if station.contains("p1") => 4,
        _ => 5,
    }
}

#[test]
fn random_messages_arrive_when_a_plain_reference_says_in_any_order_of_submission() {
    for seed in 0..40 {
        let (topology, mut chance) = (two_switches(Some(1_000_000_000)), Chance(seed));
        let mut sent = Vec::new();
        for id in 0..60 {
            let (from, to) = (chance.below(4) as u32, chance.below(4) as u32);
            let bytes = chance.below(100);
            sent.push((message(id, 0, from, to, bytes), chance.below(2_000_000)));
        }
        let expected = reference(&topology, &sent);
        for reversed in [false, true] {
            if reversed {
                sent.reverse();
            }
            let mut fabric =
                FabricQueues::new(topology.clone(), ServiceOrder::FirstCome, vec![]).unwrap();
            for (message, at) in &sent {
                fabric.submit(*message, *at).unwrap();
            }
            let all = deliver_all(&mut fabric);
            assert!(all.windows(2).all(|w| w[0].arrived_ps <= w[1].arrived_ps), "seed {seed}");
            let found: BTreeMap<u64, u64> =
                all.iter().map(|d| (d.message.id, d.arrived_ps)).collect();
            assert_eq!(found, expected, "seed {seed}");
        }
    }
}

/// Bytes by class that came over a link within `until_ps`, where both classes always wait.
fn bytes_by_class(order: ServiceOrder, shares: Vec<ClassShare>, until_ps: u64) -> [u64; 2] {
    let mut fabric = FabricQueues::new(pair(20), order, shares).unwrap();
    for id in 0..1000 {
        // Of class 1 four times as much is sent.
        for (class, copies) in [(0, 1), (1, 4)] {
            for copy in 0..copies {
                fabric
                    .submit(message(id * 8 + class * 4 + copy, class as u16, 0, 1, 64), id)
                    .unwrap();
            }
        }
    }
    let (mut deliveries, mut bytes) = (Vec::new(), [0; 2]);
    fabric.advance(until_ps, &mut deliveries);
    for delivery in deliveries {
        bytes[usize::from(delivery.message.class.0)] += delivery.message.bytes;
    }
    bytes
}

#[test]
fn weights_divide_a_busy_link_and_first_come_does_not() {
    let share = |weight| ClassShare { weight, cap: None };
    // 1,000 messages of 64 ns, of 5,000 that wait.
    let until_ps = 64_000_000;
    let fcfs = bytes_by_class(ServiceOrder::FirstCome, vec![], until_ps);
    assert!((fcfs[1] as f64 / fcfs[0] as f64 - 4.0).abs() < 0.05, "{fcfs:?}");
    let equal = bytes_by_class(ServiceOrder::WeightedFair, vec![share(1), share(1)], until_ps);
    assert!(equal[0].abs_diff(equal[1]) <= 2 * 64, "{equal:?}");
    let three = bytes_by_class(ServiceOrder::WeightedFair, vec![share(3), share(1)], until_ps);
    assert!((three[0] as f64 / three[1] as f64 - 3.0).abs() < 0.05, "{three:?}");
}

#[test]
fn a_cap_holds_a_class_to_its_rate_and_leaves_the_other_alone() {
    let cap = Some(BytesPerSec(100_000_000));
    let shares = vec![ClassShare { weight: 1, cap }, ClassShare::default()];
    let mut fabric = FabricQueues::new(pair(20), ServiceOrder::FirstCome, shares).unwrap();
    for id in 0..10 {
        fabric.submit(message(id, 0, 0, 1, 64), 0).unwrap();
    }
    let all = deliver_all(&mut fabric);
    // A message of 64 bytes every 640 ns; each then takes 64 ns and the latency.
    let times: Vec<u64> = all.iter().map(|d| d.arrived_ps / 1000).collect();
    assert_eq!(times, (0..10).map(|id| id * 640 + 84).collect::<Vec<u64>>());
    assert_eq!(all[9].queued_ps, 9 * 640_000);
}

#[test]
fn counters_add_up() {
    let mut fabric = FabricQueues::new(pair(20), ServiceOrder::FirstCome, vec![]).unwrap();
    for id in 0..3 {
        fabric.submit(message(id, 0, 0, 1, 100), 0).unwrap();
    }
    deliver_all(&mut fabric);
    let counters = fabric.counters(0).unwrap();
    let expected = StationCounters {
        messages: 3,
        bytes: 300,
        busy_ps: 300_000,
        queued_ps: 100_000 + 200_000,
        longest_queue: 2,
    };
    assert_eq!(counters, expected);
    assert_eq!(fabric.counters(1), Some(StationCounters::default()));
    assert_eq!(fabric.counters(99), None);
}
