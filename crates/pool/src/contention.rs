//! What hosts take from each other, window by window: queues of the fabric, of pools' banks and of
//! the manager, all in closed form, so that a window costs the same however many messages it has.

use crate::spread::{LatencyHistogram, LatencySpread};
use crate::system::{AccessScheme, PoolDescription, SystemDescription};
use crate::PoolError;
use serde::Serialize;
use terrace_fabric::analysis::mean_wait_md1;
use terrace_fabric::loads::SAME_TRAFFIC;
use terrace_fabric::{FabricError, FabricLoads, FabricTopology, PairTraffic, QueueLoad, VertexId};
use terrace_model::engine::BusBytes;
use terrace_types::Nanos;

/// Bytes of a request's data.
const LINE: u64 = 64;
/// Picoseconds in a nanosecond.
const PS: u64 = 1000;
/// Picoseconds in a microsecond.
const PS_PER_US: u64 = 1_000_000;
/// Utilisation beyond which closed forms are not followed, as of [`FabricLoads`].
const MOST_UTILISATION: f64 = 0.95;
/// Points of time for which the use of links is kept at most; neighbours are joined beyond.
const MOST_POINTS: usize = 128;

/// What one host did in a window.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostWindow {
    /// Bytes by pool.
    pub bytes: Vec<BusBytes>,
    /// Requests for frames that it made to the manager.
    pub requests: u64,
}

/// What one host finds in the next window.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostQueues {
    /// What a miss waits on the way to each pool and in it, picoseconds.
    pub waits_ps: Vec<u64>,
    /// How many 1024ths of its bytes in this window it may move from and to each pool.
    pub limits: Vec<Option<u64>>,
    /// What a request for a frame waits for the manager, picoseconds.
    pub manager_wait_ps: u64,
}

/// Use of one direction of a link, or of a switch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueUse {
    /// Its ends, or its name.
    pub queue: String,
    /// Messages that passed.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Mean time that a message waited here, nanoseconds.
    pub mean_wait_ns: f64,
    /// How long messages took here: the wait and the way of its first bit.
    pub latency_ns: LatencySpread,
    /// What it serves, bytes a second; none: no limit.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Bytes in each of equal spans of time.
    pub bytes_over_time: Vec<u64>,
}

/// Waits at what is no part of the fabric: banks of a pool, checks of access, the manager.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StationUse {
    /// What it is.
    pub station: String,
    /// Requests that passed.
    pub requests: u64,
    /// Mean time that a request waited, nanoseconds.
    pub mean_wait_ns: f64,
    /// How long requests took here: wait and service.
    pub latency_ns: LatencySpread,
}

/// Requests that passed a station, and how long all of them waited.
#[derive(Debug, Clone, Default)]
struct StationTotal {
    requests: u64,
    waited_ps: u128,
    latencies: LatencyHistogram,
}

impl StationTotal {
    /// So many requests waited, and were then served, so long.
    fn count(&mut self, requests: u64, wait_ps: u64, service_ps: u64) {
        self.requests += requests;
        self.waited_ps += u128::from(requests) * u128::from(wait_ps);
        self.latencies.count(wait_ps + service_ps, requests);
    }

    fn named(&self, station: String) -> StationUse {
        let mean_wait_ns = self.waited_ps as f64 / (self.requests as f64).max(1.0) / PS as f64;
        let latency_ns = self.latencies.spread();
        StationUse { station, requests: self.requests, mean_wait_ns, latency_ns }
    }
}

/// Who checks accesses, and how fast.
#[derive(Debug, Clone)]
struct AccessChecks {
    /// Names of the checkers.
    names: Vec<String>,
    /// By host and pool: who checks.
    checker: Vec<Vec<usize>>,
    /// Checks in a microsecond; none: no limit.
    per_us: Option<u64>,
    /// What a check takes, picoseconds.
    check_ps: u64,
    totals: Vec<StationTotal>,
}

/// All queues of a system.
#[derive(Debug, Clone)]
pub(crate) struct SystemQueues {
    loads: FabricLoads,
    hosts: Vec<(VertexId, u32)>,
    /// Most that each host may move from and to pools, bytes a second.
    caps: Vec<Option<u64>>,
    checks: Option<AccessChecks>,
    bank_totals: Vec<StationTotal>,
    manager_total: StationTotal,
    pools: Vec<(VertexId, PoolDescription)>,
    header_bytes: u64,
    requests_per_us: Option<u64>,
    /// From a request to its reply without waits, by host and pool, picoseconds.
    bare_ps: Vec<Vec<u64>>,
    /// Waits that hosts were told last.
    waits_ps: Vec<Vec<u64>>,
    over_time: Vec<Vec<u64>>,
    windows: u64,
    windows_a_point: u64,
    /// By queue of the fabric: what had passed when the last window began.
    before: Vec<QueueLoad>,
    /// By queue of the fabric: how long messages took.
    latencies: Vec<LatencyHistogram>,
}

impl SystemQueues {
    /// The queues of `system`, all empty.
    ///
    /// # Errors
    /// [`PoolError`]: as [`SystemDescription::check`].
    pub fn new(system: &SystemDescription, file: &str) -> Result<Self, PoolError> {
        let fabric = system.fabric(file)?;
        let vertex = |name: &str| fabric.find(name).unwrap_or(VertexId(0));
        let hosts: Vec<_> =
            system.list_hosts().map(|(name, group)| (vertex(&name), group.weight)).collect();
        let pools: Vec<_> =
            system.list_pools(file)?.into_iter().map(|pool| (vertex(&pool.name), pool)).collect();
        let caps = system.list_hosts().map(|(_, group)| group.cap_bytes_per_s).collect();
        let wrong = |why| PoolError::Fabric { file: file.to_owned(), line: None, why };
        let check_ps = system.access.as_ref().and_then(|access| access.check_ns).unwrap_or(0) * PS;
        let mut bare_ps = Vec::new();
        for (host, _) in &hosts {
            let mut row = Vec::new();
            for (at, pool) in &pools {
                let there = fabric.latency_ps(*host, *at).map_err(wrong)?;
                let back = fabric.latency_ps(*at, *host).map_err(wrong)?;
                row.push(there + back + pool.read.get() * PS + check_ps);
            }
            bare_ps.push(row);
        }
        let queues = fabric.station_count();
        let checks = AccessChecks::new(system, &fabric, &hosts, &pools).map_err(wrong)?;
        Ok(Self {
            caps,
            checks,
            bank_totals: vec![StationTotal::default(); pools.len()],
            manager_total: StationTotal::default(),
            loads: FabricLoads::new(fabric),
            waits_ps: vec![vec![0; pools.len()]; hosts.len()],
            hosts,
            pools,
            header_bytes: system.messages.header_bytes,
            requests_per_us: system.manager.requests_per_us,
            bare_ps,
            over_time: vec![Vec::new(); queues],
            windows: 0,
            windows_a_point: 1,
            before: vec![QueueLoad::default(); queues],
            latencies: vec![LatencyHistogram::default(); queues],
        })
    }

    /// A window has passed in which hosts did this; what each of them finds in the next one.
    ///
    /// # Errors
    /// [`PoolError::Fabric`].
    pub fn pass(
        &mut self,
        window: Nanos,
        hosts: &[HostWindow],
    ) -> Result<Vec<HostQueues>, PoolError> {
        let window_ps = window.get() * PS;
        let traffic = self.traffic(hosts);
        let outlooks = self.loads.pass(window_ps, &traffic).map_err(|why| {
            let file = "of the system".to_owned();
            PoolError::Fabric { file, line: None, why }
        })?;
        let banks: Vec<u64> =
            (0..self.pools.len()).map(|pool| self.bank_wait_ps(pool, window_ps, hosts)).collect();
        let manager_wait_ps = self.manager_wait_ps(window_ps, hosts);
        let checks = self.checks.as_mut().map(|checks| checks.pass(window_ps, hosts));
        self.keep_use();
        let count = self.pools.len();
        let caps = &self.caps;
        let reported = hosts.iter().enumerate().map(|(host, window)| {
            let mine = &outlooks[host * count..(host + 1) * count];
            let check = |pool: usize| checks.as_ref().map_or(0, |waits| waits[host][pool]);
            let found = mine.iter().zip(&banks).enumerate();
            let found = found.map(|(pool, (outlook, bank))| outlook.wait_ps + bank + check(pool));
            let cap = caps[host].and_then(|cap| limit_of_cap(cap, window_ps, window));
            for (wait, found) in self.waits_ps[host].iter_mut().zip(found) {
                // Half of the way, since hosts that wait longer ask for less: the whole way
                // overshoots, and waits and traffic then alternate from window to window.
                *wait = (*wait + found) / 2;
            }
            HostQueues {
                waits_ps: self.waits_ps[host].clone(),
                limits: mine.iter().map(|outlook| least(outlook.limit, cap)).collect(),
                manager_wait_ps,
            }
        });
        Ok(reported.collect())
    }

    /// Whoever checks accesses of a host to a pool; `None`: nobody does.
    pub fn checker(&self, host: usize, pool: usize) -> Option<&str> {
        let checks = self.checks.as_ref()?;
        Some(&checks.names[*checks.checker.get(host)?.get(pool)?])
    }

    /// The name of a pool.
    pub fn pool_name(&self, pool: usize) -> &str {
        self.pools.get(pool).map_or("", |(_, pool)| &pool.name)
    }

    /// Each direction of each link, and each switch, that messages passed.
    pub fn uses(&self) -> Vec<QueueUse> {
        let totals = self.loads.totals().iter().enumerate();
        let used = totals.filter(|(_, total)| total.messages > 0);
        let describe = |(queue, total): (usize, &QueueLoad)| QueueUse {
            queue: self.loads.topology().station_name(queue),
            messages: total.messages,
            bytes: total.bytes,
            mean_wait_ns: total.waited_ps as f64 / total.messages as f64 / PS as f64,
            latency_ns: self.latencies[queue].spread(),
            bandwidth_bytes_per_s: self.loads.topology().station_bandwidth(queue).map(|b| b.get()),
            bytes_over_time: self.over_time[queue].clone(),
        };
        used.map(describe).collect()
    }

    /// Banks of each pool, who checks accesses, and the manager.
    pub fn stations(&self) -> Vec<StationUse> {
        let banks = self.pools.iter().zip(&self.bank_totals);
        let banks = banks.map(|((_, pool), total)| total.named(format!("{} banks", pool.name)));
        let checks = self.checks.iter().flat_map(|checks| {
            checks.names.iter().zip(&checks.totals).map(|(name, total)| total.named(name.clone()))
        });
        banks.chain(checks).chain([self.manager_total.named("manager".to_owned())]).collect()
    }

    /// How long each point of [`QueueUse::bytes_over_time`] is.
    pub fn point(&self, window: Nanos) -> Nanos {
        Nanos(window.get() * self.windows_a_point)
    }

    fn traffic(&self, hosts: &[HostWindow]) -> Vec<PairTraffic> {
        let mut pairs = Vec::with_capacity(self.hosts.len() * self.pools.len());
        for (index, ((from, weight), host)) in self.hosts.iter().zip(hosts).enumerate() {
            for (pool, (to, _)) in self.pools.iter().enumerate() {
                let BusBytes { read, written } = host.bytes.get(pool).copied().unwrap_or_default();
                let (reads, writes) = (read / LINE, written / LINE);
                let headers = self.header_bytes * (reads + writes);
                pairs.push(PairTraffic {
                    from: *from,
                    to: *to,
                    weight: *weight,
                    messages: reads + writes,
                    request_bytes: headers + written,
                    reply_bytes: headers + read,
                    round_trip_ps: self.bare_ps[index][pool] + self.waits_ps[index][pool],
                });
            }
        }
        pairs
    }

    /// What a request waits for its bank: an M/G/1 queue for each bank, but no longer than the
    /// other requests take that are under way.
    fn bank_wait_ps(&mut self, pool: usize, window_ps: u64, hosts: &[HostWindow]) -> u64 {
        let of = &self.pools[pool].1;
        let (mut reads, mut writes, mut under_way_ps) = (0, 0, 0_u128);
        for (index, host) in hosts.iter().enumerate() {
            let bytes = host.bytes.get(pool).copied().unwrap_or_default();
            reads += bytes.read / LINE;
            writes += bytes.written / LINE;
            let round_trip = self.bare_ps[index][pool] + self.waits_ps[index][pool];
            under_way_ps +=
                u128::from((bytes.read + bytes.written) / LINE) * u128::from(round_trip);
        }
        let (read_ps, write_ps) = ((of.read.get() * PS) as f64, (of.write.get() * PS) as f64);
        let places = f64::from(of.banks) * window_ps as f64;
        let busy = reads as f64 * read_ps + writes as f64 * write_ps;
        let squares = reads as f64 * read_ps.powi(2) + writes as f64 * write_ps.powi(2);
        let utilisation = (busy / places).min(MOST_UTILISATION);
        let open = squares / places / (2.0 * (1.0 - utilisation));
        let others = (under_way_ps as f64 / window_ps as f64 - 1.0).max(0.0) / f64::from(of.banks);
        let wait_ps = open.min(others * busy / ((reads + writes) as f64).max(1.0)) as u64;
        self.bank_totals[pool].count(reads, wait_ps, read_ps as u64);
        self.bank_totals[pool].count(writes, wait_ps, write_ps as u64);
        wait_ps
    }

    fn manager_wait_ps(&mut self, window_ps: u64, hosts: &[HostWindow]) -> u64 {
        let requests: u64 = hosts.iter().map(|host| host.requests).sum();
        let wait_ps = self.requests_per_us.map_or(0, |rate| wait_ps(requests, rate, window_ps));
        let service_ps = self.requests_per_us.map_or(0, |rate| PS_PER_US / rate);
        self.manager_total.count(requests, wait_ps, service_ps);
        wait_ps
    }

    fn keep_use(&mut self) {
        if self.windows % self.windows_a_point == 0 {
            if self.windows / self.windows_a_point == MOST_POINTS as u64 {
                for points in &mut self.over_time {
                    *points = points.chunks(2).map(|pair| pair.iter().sum()).collect();
                }
                self.windows_a_point *= 2;
            }
            self.over_time.iter_mut().for_each(|points| points.push(0));
        }
        self.windows += 1;
        for (queue, now) in self.loads.totals().iter().enumerate() {
            let before = std::mem::replace(&mut self.before[queue], *now);
            if let Some(last) = self.over_time[queue].last_mut() {
                *last += now.bytes - before.bytes;
            }
            let messages = now.messages - before.messages;
            let waited_ps = (now.waited_ps - before.waited_ps) / u128::from(messages.max(1));
            let way_ps = self.loads.topology().station_latency_ps(queue);
            let wait_ps = u64::try_from(waited_ps).unwrap_or(u64::MAX);
            self.latencies[queue].count(wait_ps.saturating_add(way_ps), messages);
        }
    }
}

/// The mean wait of `requests` in a window at a server of `per_us` of them, picoseconds: M/D/1.
fn wait_ps(requests: u64, per_us: u64, window_ps: u64) -> u64 {
    let service_ps = PS_PER_US as f64 / per_us as f64;
    let utilisation = (requests as f64 * service_ps / window_ps as f64).min(MOST_UTILISATION);
    mean_wait_md1(utilisation, service_ps).unwrap_or_default() as u64
}

/// How many 1024ths of its bytes in this window a host may move in the next one to stay below its
/// cap.
fn limit_of_cap(cap: u64, window_ps: u64, window: &HostWindow) -> Option<u64> {
    let bytes: u64 = window.bytes.iter().map(|moved| moved.read + moved.written).sum();
    let most = u128::from(cap) * u128::from(window_ps) / 1_000_000_000_000;
    let limit = most * u128::from(SAME_TRAFFIC) / u128::from(bytes.max(1));
    u64::try_from(limit).ok()
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl AccessChecks {
    /// `None` where nobody checks on the way.
    fn new(
        system: &SystemDescription,
        fabric: &FabricTopology,
        hosts: &[(VertexId, u32)],
        pools: &[(VertexId, PoolDescription)],
    ) -> Result<Option<Self>, FabricError> {
        let Some(access) = &system.access else { return Ok(None) };
        let mut names: Vec<String> = Vec::new();
        let mut checker = Vec::new();
        for (host, _) in hosts {
            let mut row = Vec::new();
            for (at, pool) in pools {
                let name = match access.scheme {
                    AccessScheme::Translation => return Ok(None),
                    AccessScheme::Module => pool.name.clone(),
                    AccessScheme::Router => match fabric.first_switch(*host, *at)? {
                        Some(switch) => fabric.name(switch).to_owned(),
                        None => pool.name.clone(),
                    },
                };
                let name = format!("{name} checks");
                let known = names.iter().position(|known| *known == name);
                row.push(known.unwrap_or(names.len()));
                if known.is_none() {
                    names.push(name);
                }
            }
            checker.push(row);
        }
        let totals = vec![StationTotal::default(); names.len()];
        let check_ps = access.check_ns.unwrap_or(0) * PS;
        Ok(Some(Self { names, checker, per_us: access.checks_per_us, check_ps, totals }))
    }

    /// What each host waits for the check of a request to each pool, picoseconds.
    fn pass(&mut self, window_ps: u64, hosts: &[HostWindow]) -> Vec<Vec<u64>> {
        let mut requests = vec![0; self.names.len()];
        for (row, host) in self.checker.iter().zip(hosts) {
            for (checker, moved) in row.iter().zip(&host.bytes) {
                requests[*checker] += (moved.read + moved.written) / LINE;
            }
        }
        let wait = |count: &u64| self.per_us.map_or(0, |rate| wait_ps(*count, rate, window_ps));
        let waits: Vec<u64> = requests.iter().map(wait).collect();
        for ((total, count), wait) in self.totals.iter_mut().zip(requests).zip(&waits) {
            total.count(count, *wait, self.check_ps);
        }
        let of_row = |row: &Vec<usize>| row.iter().map(|checker| waits[*checker]).collect();
        self.checker.iter().map(of_row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{system_preset_text, AccessDescription};

    fn opal(hosts: u32, pools: u32) -> SystemDescription {
        let text = system_preset_text("opal").unwrap();
        let mut system = SystemDescription::from_toml(text, "opal").unwrap();
        (system.hosts[0].count, system.pools[0].count) = (hosts, pools);
        system
    }

    fn window(lines: u64) -> HostWindow {
        HostWindow { bytes: vec![BusBytes { read: 64 * lines, written: 0 }], requests: 0 }
    }

    const WINDOW: Nanos = Nanos(10_000);

    #[test]
    fn banks_wait_as_their_closed_form_says_and_not_for_nobody() {
        let mut queues = SystemQueues::new(&opal(4, 1), "opal").unwrap();
        // 400 reads of 300 ns in 16 banks for 10 us: 0.75. Each of a hundred has 340 ns.
        let hosts = vec![window(100); 4];
        let first = queues.pass(WINDOW, &hosts).unwrap()[0].waits_ps[0];
        // 13.6 are under way, 12.6 others in 16 banks: 236 ns, less than the 450 of the open queue.
        assert!((116_000..120_000).contains(&first), "{first}: half of the way");
        let alone = vec![window(29), window(0), window(0), window(0)];
        let mut queues = SystemQueues::new(&opal(4, 1), "opal").unwrap();
        assert_eq!(queues.pass(WINDOW, &alone).unwrap()[0].waits_ps, [0]);
        let uses = queues.uses();
        let back = uses.iter().find(|u| u.queue == "pool0 > switch").unwrap();
        let way = LatencySpread { p50: 10, p90: 10, p99: 10, max: 10 };
        assert_eq!((back.bytes, back.latency_ns), (29 * 80, way));
    }

    #[test]
    fn latencies_are_distributions_at_each_hop() {
        let mut system = opal(4, 1);
        // A reply of 80 bytes takes 40 ns.
        system.links[1].bandwidth_bytes_per_s = Some(2_000_000_000);
        let mut queues = SystemQueues::new(&system, "opal").unwrap();
        for lines in [1, 1, 1, 1, 60, 1, 1, 1, 1, 1] {
            queues.pass(WINDOW, &vec![window(lines); 4]).unwrap();
        }
        let (uses, stations) = (queues.uses(), queues.stations());
        let link = uses.iter().find(|u| u.queue == "pool0 > switch").unwrap().latency_ns;
        let banks = stations.iter().find(|s| s.station == "pool0 banks").unwrap().latency_ns;
        // 240 of 276 lines come in the one busy window.
        for (at_hop, bare) in [(link, 10), (banks, 300)] {
            assert!(at_hop.p50 == at_hop.max && at_hop.max > bare + 100, "{at_hop:?}");
        }
        assert_eq!(stations.last().unwrap().latency_ns, LatencySpread::default(), "manager");
        for _ in 0..900 {
            queues.pass(WINDOW, &vec![window(1); 4]).unwrap();
        }
        let later = queues.stations()[0].latency_ns;
        assert!(later.p50 < 302 && later.max == banks.max, "{later:?}");
    }

    #[test]
    fn a_slow_manager_is_waited_for() {
        let mut system = opal(1, 1);
        system.manager.requests_per_us = Some(1);
        let mut queues = SystemQueues::new(&system, "opal").unwrap();
        let hosts = [HostWindow { requests: 5, ..window(0) }];
        // Half used, a service of 1 us: M/D/1 waits half a service.
        assert_eq!(queues.pass(WINDOW, &hosts).unwrap()[0].manager_wait_ps, 500_000);
    }

    #[test]
    fn a_router_checks_for_all_and_a_module_for_its_own_pool() {
        let waits = |scheme| {
            let mut system = opal(2, 2);
            system.access = Some(AccessDescription {
                scheme,
                check_ns: Some(10),
                checks_per_us: Some(10),
                entries: None,
                ways: None,
                hit_ns: None,
                step_ns: None,
                steps: None,
            });
            let mut queues = SystemQueues::new(&system, "opal").unwrap();
            let to = |pool: usize| {
                let mut bytes = vec![BusBytes::default(); 2];
                bytes[pool].read = 64 * 28;
                HostWindow { bytes, requests: 0 }
            };
            let found = queues.pass(WINDOW, &[to(0), to(1)]).unwrap();
            assert!(queues.stations().iter().any(|s| s.station.ends_with(" checks")));
            found[0].waits_ps[0]
        };
        // 56 of 100 checks in a window: 0.56 / 0.88 of 100 ns; a module has 28: 0.28 / 1.44. Half
        // of it is on the way, and 28 reads of 350 ns do not meet.
        assert_eq!(waits(AccessScheme::Router), 31_818);
        assert_eq!(waits(AccessScheme::Module), 9_722);
    }

    #[test]
    fn a_cap_limits_a_host_to_its_bytes() {
        let mut system = opal(2, 1);
        system.hosts[0].cap_bytes_per_s = Some(64_000_000);
        let mut queues = SystemQueues::new(&system, "opal").unwrap();
        // 640 bytes in 10 us are ten lines.
        let found = queues.pass(WINDOW, &[window(40), window(5)]).unwrap();
        assert_eq!((found[0].limits[0], found[1].limits[0]), (Some(256), Some(2048)));
    }

    #[test]
    fn use_over_time_is_bounded_and_loses_no_byte() {
        let mut queues = SystemQueues::new(&opal(1, 1), "opal").unwrap();
        for _ in 0..1000 {
            queues.pass(WINDOW, &[window(3)]).unwrap();
        }
        for queue in queues.uses() {
            assert!((64..=MOST_POINTS).contains(&queue.bytes_over_time.len()));
            assert_eq!(queue.bytes_over_time.iter().sum::<u64>(), queue.bytes, "{}", queue.queue);
        }
    }
}
