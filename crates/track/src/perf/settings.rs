//! What can be set of sampling, and the periods that follow from it.

use terrace_sampling::{
    MemoryOperation, SampleDevice, SamplingEvent, PAGE_FAULTS, UNIT_BUFFER_BYTES,
};
use terrace_types::Bytes;

/// Periods, primes each about twice the one before. MEMTIS (Lee et al., SOSP 2023) goes from 199 to
/// 19,997; longer ones are for events that are not misses.
const PERIODS: [u64; 11] =
    [199, 401, 797, 1_597, 3_203, 5_003, 10_007, 19_997, 40_009, 80_021, 160_001];
/// Where it begins: 10,007, as HeMem's successors do.
const FIRST_PERIOD: usize = 6;
/// How many places further the period of stores is: all stores count, and of loads those that
/// missed. MEMTIS samples one store in 100,003 where it samples one load in 10,007 to 19,997.
const STORES_FURTHER: usize = 3;
/// Of the share of a core that draining may take, the part below which the period is halved.
const EASY: f64 = 0.25;
/// Linux's buffer on x86, 64 KiB a CPU (`arch/x86/events/intel/ds.c`).
const BUFFER: Bytes = Bytes(64 << 10);

/// What is set of sampling; the default sets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerfSettings {
    /// Loads between two samples (PEBS's reset value); `None`: as many as keep draining within its
    /// share of a core.
    pub loads: Option<u64>,
    /// The same of stores; zero: stores are not sampled.
    pub stores: Option<u64>,
    /// Count all loads, not only those that the last level did not serve. For the lab's unit; a
    /// processor counts what its event does.
    pub all_loads: bool,
    /// Each CPU's buffer in the lab; the kernel's own is fixed.
    pub buffer: Bytes,
    /// Samples carry the calls that led to them.
    pub callers: bool,
    /// An event in place of those known for this processor.
    pub event: Option<SamplingEvent>,
}

impl Default for PerfSettings {
    fn default() -> Self {
        Self {
            loads: None,
            stores: None,
            all_loads: false,
            buffer: BUFFER,
            callers: false,
            event: None,
        }
    }
}

/// `PERF_TYPE_RAW`.
const RAW: u32 = 4;
/// What [`PerfSettings::parse`] understands.
const UNDERSTOOD: &str =
    "give loads=N, stores=N (0: none), all-loads, buffer=8KiB to 64KiB, or an \
     event: event=HEX with type=N, config1=HEX, precise=0 to 3, operation=loads, stores or both";

impl PerfSettings {
    /// Reads `key=value` texts with commas between them, as they follow `perf,` in `--tracker`:
    ///
    /// | key | value |
    /// |---|---|
    /// | `loads`, `stores` | events between two samples; `stores=0`: none |
    /// | `all-loads` | no value: the lab's unit counts all loads |
    /// | `buffer` | bytes of a CPU's buffer in the lab, such as 8KiB |
    /// | `event` | event's code in hexadecimal (`perf_event_attr.config`) |
    /// | `type` | number of its device, 4 (`PERF_TYPE_RAW`) unless given |
    /// | `config1` | more of the event, hexadecimal |
    /// | `precise` | `precise_ip`, 2 unless given |
    /// | `operation` | what the event counts: `loads` (unless given), `stores` or `both` |
    ///
    /// # Errors
    /// The first that is not understood, with what would be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        let mut event = SamplingEvent {
            name: "the event given",
            device: SampleDevice::Number(RAW),
            precise: 2,
            operation: MemoryOperation::Load,
            ..PAGE_FAULTS
        };
        let (mut code, mut described) = (None, false);
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || value.parse::<u64>().ok();
            let hexadecimal = || u64::from_str_radix(value.trim_start_matches("0x"), 16).ok();
            described |= matches!(key, "type" | "config1" | "precise" | "operation");
            let done = match key {
                "loads" => number().filter(|n| *n > 0).map(|n| settings.loads = Some(n)),
                "stores" => number().map(|n| settings.stores = Some(n)),
                "all-loads" => value.is_empty().then(|| settings.all_loads = true),
                "buffer" => kibibytes(value).map(|bytes| settings.buffer = bytes),
                "event" => hexadecimal().map(|config| code = Some(config)),
                "config1" => hexadecimal().map(|more| event.config1 = more),
                "type" => value.parse().ok().map(|n| event.device = SampleDevice::Number(n)),
                "precise" => value.parse().ok().filter(|n| *n <= 3).map(|n| event.precise = n),
                "operation" => operation(value).map(|counted| event.operation = counted),
                _ => None,
            };
            done.ok_or_else(|| format!("{part}: {UNDERSTOOD}"))?;
        }
        match code {
            Some(config) => settings.event = Some(SamplingEvent { config, ..event }),
            None if described => return Err(format!("no event is given: {UNDERSTOOD}")),
            None => {}
        }
        Ok(settings)
    }
}

fn operation(text: &str) -> Option<MemoryOperation> {
    match text {
        "loads" => Some(MemoryOperation::Load),
        "stores" => Some(MemoryOperation::Store),
        "both" => Some(MemoryOperation::Unknown),
        _ => None,
    }
}

/// A buffer of the lab's unit.
fn kibibytes(text: &str) -> Option<Bytes> {
    let count: u64 = text.strip_suffix("KiB")?.parse().ok()?;
    let bytes = count.checked_mul(1024)?;
    UNIT_BUFFER_BYTES.contains(&bytes).then_some(Bytes(bytes))
}

/// The period now.
#[derive(Debug, Clone, Copy)]
pub(super) struct SamplingPace {
    settings: PerfSettings,
    /// Position among [`PERIODS`].
    at: usize,
}

impl SamplingPace {
    pub fn new(settings: PerfSettings) -> Self {
        Self { settings, at: FIRST_PERIOD }
    }

    /// Loads between two samples.
    pub fn loads(&self) -> u64 {
        self.settings.loads.unwrap_or(PERIODS[self.at])
    }

    /// Stores between two samples; zero: none.
    pub fn stores(&self) -> u64 {
        let further = PERIODS[(self.at + STORES_FURTHER).min(PERIODS.len() - 1)];
        self.settings.stores.unwrap_or(further)
    }

    /// Events between two samples of an event.
    pub fn period_of(&self, event: &SamplingEvent) -> u64 {
        let period = match event.operation {
            MemoryOperation::Store => self.stores(),
            _ => self.loads(),
        };
        period.next_multiple_of(event.period_unit.max(1))
    }

    /// Whether stores are wanted at all.
    pub fn wants_stores(&self) -> bool {
        self.settings.stores != Some(0)
    }

    /// The period that keeps draining, which took `spent` of a core, within `share`; whether it
    /// is another one.
    pub fn adapt(&mut self, spent: f64, share: f64) -> bool {
        let before = self.at;
        if spent > share {
            self.at = (self.at + 1).min(PERIODS.len() - 1);
        } else if spent < share * EASY {
            self.at = self.at.saturating_sub(1);
        }
        self.at != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_follows_the_cost_of_draining() {
        let mut pace = SamplingPace::new(PerfSettings::default());
        assert_eq!((pace.loads(), pace.stores()), (10_007, 80_021));
        assert!(pace.adapt(0.02, 0.01) && pace.loads() == 19_997);
        assert!(!pace.adapt(0.005, 0.01), "easy enough");
        while pace.adapt(0.0, 0.01) {}
        assert_eq!(pace.loads(), 199);
        while pace.adapt(1.0, 0.01) {}
        assert_eq!((pace.loads(), pace.stores()), (160_001, 160_001));
    }

    #[test]
    fn what_is_set_stays() {
        let settings = PerfSettings { loads: Some(64), stores: Some(0), ..PerfSettings::default() };
        let mut pace = SamplingPace::new(settings);
        pace.adapt(1.0, 0.01);
        assert_eq!((pace.loads(), pace.wants_stores()), (64, false));
        let sixteens = SamplingEvent { period_unit: 16, ..PAGE_FAULTS };
        assert_eq!(pace.period_of(&sixteens), 64);
        let pace = SamplingPace::new(PerfSettings { loads: Some(65), ..settings });
        assert_eq!(pace.period_of(&sixteens), 80);
    }

    #[test]
    fn settings_are_read_and_refused_with_what_is_understood() {
        let set = PerfSettings::parse("loads=64,stores=0,buffer=8KiB").unwrap();
        let wanted = PerfSettings {
            loads: Some(64),
            stores: Some(0),
            buffer: Bytes(8 << 10),
            ..PerfSettings::default()
        };
        assert_eq!(set, wanted);
        assert_eq!(PerfSettings::parse(""), Ok(PerfSettings::default()));
        let set = PerfSettings::parse("event=0x1cd,config1=1e,operation=both,type=8").unwrap();
        let event = set.event.unwrap();
        assert_eq!((event.config, event.config1, event.precise), (0x1cd, 0x1e, 2));
        assert_eq!(event.device, SampleDevice::Number(8));
        assert_eq!(event.operation, MemoryOperation::Unknown);
        for bad in
            ["loads=0", "buffer=4KiB", "buffer=8", "event=x", "config1=3", "eyes", "precise=4"]
        {
            let why = PerfSettings::parse(bad).unwrap_err();
            assert!(why.contains("give loads=N"), "{bad}: {why}");
        }
    }
}
