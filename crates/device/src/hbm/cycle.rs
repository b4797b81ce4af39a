//! Cycle model of one pseudo-channel: banks, bank groups, dies that share it, refresh, turnarounds.
//!
//! A controller with open rows keeps a window of requests and sends the one whose data can come
//! first, the oldest among equals; one that has waited too long goes before all. Writes wait until
//! there are many and are drained together. A single-bank refresh takes a bank that nobody waits
//! for, where there is one that its round has not had. Time is in nanoseconds as the timings are;
//! commands need no bus of their own (HBM has one for rows and one for columns). All chance comes
//! from the seed.

use super::banks::{burst_bytes, burst_ns, AccessPattern};
use super::design::{RefreshMode, StackDesign, TsvStructure};
use super::refresh;

/// Requests that the controller chooses from (DRAMsim3's HBM files: 32).
const WINDOW: usize = 32;
/// A request that has waited so long is next, ns: ours; long against a row cycle, short against
/// refresh.
const PATIENCE_NS: f64 = 1000.0;
/// Writes are drained once so many wait, until so few are left: ours, half of the window and an
/// eighth; each turnaround costs the time of ten bursts.
const DRAIN_FROM: usize = WINDOW / 2;
/// See [`DRAIN_FROM`].
const DRAIN_TO: usize = WINDOW / 8;
/// Share of the time that refresh must leave; with less, nothing is served to speak of.
const LEAST_SHARE: f64 = 0.1;
/// Banks that a single-bank refresh chooses from: all of a channel in use today.
const REFRESH_CHOICES: usize = 64;
/// Where no request is before.
const LONG_AGO: f64 = -1e9;

/// What a pseudo-channel did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CycleResult {
    /// Bytes a second of the pseudo-channel.
    pub bytes_per_s: f64,
    /// Mean time from a request's arrival to its last data, ns.
    pub mean_latency_ns: f64,
    /// Activations for each burst.
    pub activations_per_burst: f64,
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// As soon as there is space in the window.
    Saturated,
    /// At random with this mean distance, ns (Poisson).
    Every(f64),
}

struct Bank {
    row: Option<u64>,
    /// Earliest next activation, counted from the last and from precharge.
    ready_ns: f64,
    activated_ns: f64,
    /// Earliest precharge.
    precharge_ns: f64,
}

struct Request {
    bank: usize,
    row: u64,
    write: bool,
    arrived_ns: f64,
}

/// xorshift64*: small, seeded, the same everywhere (S. Vigna, ACM TOMS 42(4), 2016).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The state of a pseudo-channel.
struct Channel<'d> {
    design: &'d StackDesign,
    banks: Vec<Bank>,
    burst_ns: f64,
    banks_per_die: usize,
    bus_free_ns: f64,
    last: Option<(usize, bool)>,
    last_data_ns: f64,
    group_ns: Vec<f64>,
    /// Last four activations of each die, oldest first.
    activations: Vec<[f64; 4]>,
    activated: u64,
    next_refresh_ns: f64,
    refresh_every_ns: f64,
    /// Banks that this round of single-bank refreshes has not had.
    unrefreshed: Vec<usize>,
    draining: bool,
}

/// Serves `requests` bursts of this pattern.
#[must_use]
pub fn serve(
    design: &StackDesign,
    pattern: AccessPattern,
    refresh_rate: f64,
    arrival: Arrival,
    requests: u32,
    seed: u64,
) -> CycleResult {
    if refresh::available_share(design, refresh_rate) < LEAST_SHARE {
        return CycleResult {
            bytes_per_s: 0.0,
            mean_latency_ns: design.refresh.refi_ns,
            activations_per_burst: 1.0,
        };
    }
    let mut channel = Channel::new(design, refresh_rate);
    let mut source = Source::new(pattern, arrival, channel.banks.len(), seed);
    let mut window: Vec<Request> = Vec::with_capacity(WINDOW);
    let (mut made, mut served) = (0_u32, 0_u32);
    let (mut now, mut waited) = (0.0_f64, 0.0_f64);
    while served < requests {
        let space = |window: &[Request]| made < requests && window.len() < WINDOW;
        if space(&window) && (window.is_empty() || arrival == Arrival::Saturated) {
            window.push(source.make(now));
            made += 1;
            continue;
        }
        let (index, data_ns) = channel.choose(&window, now);
        // Who comes before these data may overtake them.
        if space(&window) && source.next_ns <= data_ns {
            window.push(source.make(now));
            made += 1;
            continue;
        }
        let request = window.remove(index);
        channel.send(&request, data_ns);
        channel.refresh_due(&window);
        now = now.max(data_ns);
        waited += data_ns + channel.burst_ns - request.arrived_ns;
        served += 1;
    }
    let bytes = f64::from(served) * burst_bytes(design);
    CycleResult {
        bytes_per_s: bytes / channel.bus_free_ns.max(1e-9) * 1e9,
        mean_latency_ns: waited / f64::from(served.max(1)),
        activations_per_burst: channel.activated as f64 / f64::from(served.max(1)),
    }
}

struct Source {
    pattern: AccessPattern,
    arrival: Arrival,
    chance: Chance,
    banks: usize,
    bank: usize,
    row: u64,
    left: u32,
    next_ns: f64,
}

impl Source {
    fn new(pattern: AccessPattern, arrival: Arrival, banks: usize, seed: u64) -> Self {
        let chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { pattern, arrival, chance, banks, bank: 0, row: 0, left: 0, next_ns: 0.0 }
    }

    fn make(&mut self, now: f64) -> Request {
        if self.left == 0 {
            // Sequential data goes over the banks in order, single bursts anywhere.
            self.bank = if self.pattern.bursts_per_row > 1 {
                (self.bank + 1) % self.banks
            } else {
                (self.chance.next() % self.banks as u64) as usize
            };
            self.row = self.chance.next() >> 32;
            self.left = self.pattern.bursts_per_row.max(1);
        }
        self.left -= 1;
        let arrived_ns = match self.arrival {
            Arrival::Saturated => now,
            Arrival::Every(mean) => {
                let at = self.next_ns;
                self.next_ns += -mean * (1.0 - self.chance.unit()).ln();
                at
            }
        };
        let write = self.chance.unit() < self.pattern.write_share;
        Request { bank: self.bank, row: self.row, write, arrived_ns }
    }
}

impl<'d> Channel<'d> {
    fn new(design: &'d StackDesign, refresh_rate: f64) -> Self {
        let banks_per_die = design.interface.banks as usize;
        let dies = design.ranks() as usize;
        let bank = || Bank { row: None, ready_ns: 0.0, activated_ns: LONG_AGO, precharge_ns: 0.0 };
        let banks: Vec<Bank> = (0..banks_per_die * dies).map(|_| bank()).collect();
        let interval = design.refresh.refi_ns / refresh_rate;
        let refresh_every_ns = match design.refresh.refresh {
            RefreshMode::AllBank => interval,
            RefreshMode::SingleBank => interval / banks.len() as f64,
        };
        Self {
            design,
            burst_ns: burst_ns(design),
            banks_per_die,
            bus_free_ns: 0.0,
            last: None,
            last_data_ns: 0.0,
            group_ns: vec![LONG_AGO; design.interface.bank_groups as usize * dies],
            activations: vec![[LONG_AGO; 4]; dies],
            activated: 0,
            next_refresh_ns: refresh_every_ns,
            refresh_every_ns,
            unrefreshed: Vec::new(),
            draining: false,
            banks,
        }
    }

    fn group(&self, bank: usize) -> usize {
        let groups = self.design.interface.bank_groups as usize;
        bank / self.banks_per_die * groups + bank % groups
    }

    /// The request to serve next and when its data begin.
    fn choose(&mut self, window: &[Request], now: f64) -> (usize, f64) {
        let oldest =
            window.iter().enumerate().min_by(|a, b| a.1.arrived_ns.total_cmp(&b.1.arrived_ns));
        if let Some((index, request)) = oldest {
            if now - request.arrived_ns > PATIENCE_NS {
                return (index, self.data_ns(request));
            }
        }
        let writes = window.iter().filter(|r| r.write).count();
        self.draining =
            writes == window.len() || writes >= DRAIN_FROM || (self.draining && writes > DRAIN_TO);
        let mut best = (0, f64::INFINITY);
        for (index, request) in window.iter().enumerate().filter(|r| r.1.write == self.draining) {
            let data = self.data_ns(request);
            if data < best.1 - 1e-9 {
                best = (index, data);
            }
        }
        best
    }

    /// Earliest activation of a request's row.
    fn activation_ns(&self, request: &Request) -> f64 {
        let t = &self.design.timing;
        let bank = &self.banks[request.bank];
        let window = &self.activations[request.bank / self.banks_per_die];
        let precharged = if bank.row.is_some() {
            bank.precharge_ns.max(bank.activated_ns + t.ras_ns) + t.rp_ns
        } else {
            bank.ready_ns
        };
        precharged.max(request.arrived_ns).max(window[0] + t.faw_ns).max(window[3] + t.rrd_ns)
    }

    /// When a request's data could begin, all else as it is.
    fn data_ns(&self, request: &Request) -> f64 {
        let t = &self.design.timing;
        let bank = &self.banks[request.bank];
        let latency = if request.write { t.cwl_ns } else { t.cl_ns };
        let row_ready = if bank.row == Some(request.row) {
            bank.activated_ns + t.rcd_ns
        } else {
            self.activation_ns(request) + t.rcd_ns
        };
        let mut data = row_ready.max(request.arrived_ns) + latency;
        data = data.max(self.group_ns[self.group(request.bank)] + self.burst_ns * t.ccd_l_bursts);
        let mut free = self.bus_free_ns;
        if let Some((die, write)) = self.last {
            let same_die = die == request.bank / self.banks_per_die;
            if !same_die && self.design.tsv.structure == TsvStructure::SharedRanks {
                free += self.design.tsv.switch_gap_ns;
            }
            if write && !request.write {
                // The read command waits until the written data have settled.
                free = free.max(self.bus_free_ns + t.wtr_ns + t.cl_ns);
            }
        }
        data.max(free)
    }

    /// Books a request whose data begin at `data_ns`, and refreshes that are due before.
    fn send(&mut self, request: &Request, data_ns: f64) {
        let t = self.design.timing.clone();
        if self.banks[request.bank].row != Some(request.row) {
            let at = self.activation_ns(request);
            let window = &mut self.activations[request.bank / self.banks_per_die];
            window.rotate_left(1);
            window[3] = at.max(window[2]);
            let bank = &mut self.banks[request.bank];
            (bank.row, bank.activated_ns) = (Some(request.row), at);
            self.activated += 1;
        }
        let end = data_ns + self.burst_ns;
        let recovery = if request.write { end + t.wr_ns } else { data_ns - t.cl_ns + t.rtp_ns };
        let group = self.group(request.bank);
        let bank = &mut self.banks[request.bank];
        bank.precharge_ns = bank.precharge_ns.max(recovery);
        self.group_ns[group] = data_ns;
        self.last = Some((request.bank / self.banks_per_die, request.write));
        self.bus_free_ns = end;
        self.last_data_ns = data_ns;
    }

    /// Refreshes that are due when the bus is free.
    fn refresh_due(&mut self, window: &[Request]) {
        while self.next_refresh_ns <= self.bus_free_ns {
            self.refresh(window);
        }
    }

    /// The bank of a single-bank refresh: not yet had, not waited for, and of those the one whose
    /// turn in sequential data is longest ahead, the last that was activated.
    fn bank_to_refresh(&mut self, window: &[Request]) -> usize {
        if self.unrefreshed.is_empty() {
            self.unrefreshed = (0..self.banks.len()).collect();
        }
        let key =
            |bank: usize| (window.iter().all(|r| r.bank != bank), self.banks[bank].activated_ns);
        let first = self.unrefreshed.len().saturating_sub(REFRESH_CHOICES);
        let mut best = (first, key(self.unrefreshed[first]));
        for at in first + 1..self.unrefreshed.len() {
            let this = key(self.unrefreshed[at]);
            if this > best.1 {
                best = (at, this);
            }
        }
        self.unrefreshed.swap_remove(best.0)
    }

    fn refresh(&mut self, window: &[Request]) {
        let due = self.next_refresh_ns;
        self.next_refresh_ns += self.refresh_every_ns;
        let (ras, rp) = (self.design.timing.ras_ns, self.design.timing.rp_ns);
        let close = |bank: &Bank| match bank.row {
            Some(_) => bank.precharge_ns.max(bank.activated_ns + ras).max(due) + rp,
            None => bank.ready_ns.max(due),
        };
        match self.design.refresh.refresh {
            RefreshMode::AllBank => {
                let closed = self.banks.iter().map(close).fold(due, f64::max);
                let end = closed.max(self.bus_free_ns) + self.design.refresh.rfc_ns;
                for bank in &mut self.banks {
                    (bank.row, bank.ready_ns) = (None, end);
                }
            }
            RefreshMode::SingleBank => {
                let chosen = self.bank_to_refresh(window);
                let end = close(&self.banks[chosen]) + self.design.refresh.rfc_bank_ns;
                let bank = &mut self.banks[chosen];
                (bank.row, bank.ready_ns) = (None, end);
            }
        }
    }
}
