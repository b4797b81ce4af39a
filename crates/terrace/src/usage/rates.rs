//! Rates over an interval: pages moved, and bytes through memory controllers.

use super::MoveRates;
use std::collections::BTreeMap;
use terrace_sys::{
    controllers, node_of_cpu, page_moves, ControllerTraffic, PageMoves, Root, TrafficCounter,
};
use terrace_types::Tick;

/// Counters of what is shown as rates, and their values when the interval began.
#[derive(Debug)]
pub(super) struct RateCounters {
    controllers: Vec<ControllerCounter>,
    begun: Option<Tick>,
    moves: Option<PageMoves>,
    bytes: Vec<Option<f64>>,
}

/// One controller's counter, and the node of the CPU that it counts on.
#[derive(Debug)]
struct ControllerCounter {
    node: u16,
    traffic: ControllerTraffic,
    counter: TrafficCounter,
}

/// What happened a second.
#[derive(Debug, Default)]
pub(super) struct Rates {
    pub moves: Option<MoveRates>,
    /// Bytes by node.
    pub read: BTreeMap<u16, f64>,
    pub written: BTreeMap<u16, f64>,
}

impl RateCounters {
    /// Opens the counters that there are; why there is no bandwidth, if there is none.
    pub fn open(root: &Root) -> (Self, Option<String>) {
        let (mut opened, mut why) = (Vec::new(), None);
        for traffic in [ControllerTraffic::DramReads, ControllerTraffic::DramWrites] {
            for controller in controllers(root, traffic) {
                for cpu in controller.cpus.iter().copied() {
                    let Some(node) = node_of_cpu(root, cpu) else { continue };
                    match controller.open(cpu) {
                        Ok(counter) => {
                            opened.push(ControllerCounter { node: node.0, traffic, counter });
                        }
                        Err(error) => why = Some(format!("bandwidth is not measured: {error}")),
                    }
                }
            }
        }
        if opened.is_empty() && why.is_none() {
            why = Some(
                "bandwidth is not measured: no memory controller shows counters (uncore_imc)"
                    .to_owned(),
            );
        }
        (Self { controllers: opened, begun: None, moves: None, bytes: Vec::new() }, why)
    }

    fn bytes(&self) -> Vec<Option<f64>> {
        self.controllers.iter().map(|c| c.counter.bytes()).collect()
    }

    /// The interval begins.
    pub fn begin(&mut self, root: &Root, now: Tick) {
        self.begun = Some(now);
        self.moves = page_moves(root).ok();
        self.bytes = self.bytes();
    }

    /// The interval ends.
    pub fn finish(&self, root: &Root, now: Tick) -> Rates {
        let seconds = self.begun.map_or(0.0, |begun| now.since(begun).as_secs_f64());
        let mut rates = Rates::default();
        if seconds <= 0.0 {
            return rates;
        }
        rates.moves = self
            .moves
            .zip(page_moves(root).ok())
            .map(|(before, after)| move_rates(before, after, seconds));
        for (counter, (before, after)) in
            self.controllers.iter().zip(self.bytes.iter().zip(self.bytes()))
        {
            if let (Some(before), Some(after)) = (before, after) {
                let by_node = match counter.traffic {
                    ControllerTraffic::DramReads => &mut rates.read,
                    _ => &mut rates.written,
                };
                *by_node.entry(counter.node).or_default() += (after - before).max(0.0) / seconds;
            }
        }
        rates
    }
}

fn move_rates(before: PageMoves, after: PageMoves, seconds: f64) -> MoveRates {
    let rate = |of: fn(&PageMoves) -> u64| of(&after).saturating_sub(of(&before)) as f64 / seconds;
    MoveRates {
        migrated_per_s: rate(|m| m.migrated),
        failed_per_s: rate(|m| m.failed),
        balanced_per_s: rate(|m| m.balanced),
        promoted_per_s: rate(|m| m.promoted),
        demoted_per_s: rate(|m| m.demoted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_types::Nanos;

    #[test]
    fn rates_are_differences_over_seconds() {
        let before = PageMoves { migrated: 100, failed: 1, balanced: 5, promoted: 7, demoted: 9 };
        let after = PageMoves { migrated: 300, failed: 2, balanced: 5, promoted: 17, demoted: 8 };
        let wanted = MoveRates {
            migrated_per_s: 100.0,
            failed_per_s: 0.5,
            balanced_per_s: 0.0,
            promoted_per_s: 5.0,
            demoted_per_s: 0.0,
        };
        assert_eq!(move_rates(before, after, 2.0), wanted);
    }

    /// Files of a machine with one controller whose events are those of the kernel's clock
    /// (`PERF_COUNT_SW_CPU_CLOCK`): opening and reading are real.
    #[test]
    fn bandwidth_and_moves_of_an_interval_are_found() {
        let folder = std::env::temp_dir().join(format!("terrace-rates-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let device = "sys/bus/event_source/devices/uncore_imc_0";
        for (file, text) in [("type", "1\n"), ("cpumask", "0\n"), ("format/event", "config:0-7\n")]
        {
            write(&format!("{device}/{file}"), text);
        }
        for event in ["cas_count_read", "cas_count_write"] {
            write(&format!("{device}/events/{event}"), "event=0x0\n");
        }
        write("sys/devices/system/cpu/cpu0/node3/x", "");
        write("proc/vmstat", "pgmigrate_success 5\n");
        let root = Root::with_prefix(&folder);
        let (mut counters, why) = RateCounters::open(&root);
        if let Some(why) = why {
            std::fs::remove_dir_all(&folder).expect("removed");
            return println!("skipped: {why}");
        }
        let begun = terrace_sys::now();
        counters.begin(&root, begun);
        while terrace_sys::now().since(begun) < Nanos::millis(2) {}
        write("proc/vmstat", "pgmigrate_success 25\n");
        let rates = counters.finish(&root, begun.after(Nanos::millis(2)));
        assert_eq!(rates.moves.map(|m| m.migrated_per_s), Some(10_000.0));
        // 64 bytes for each nanosecond, a little longer than the interval is said to be.
        assert!(rates.read[&3] > 6e10 && rates.written[&3] > 6e10, "{rates:?}");
        let none = counters.finish(&root, begun);
        assert!(none.moves.is_none() && none.read.is_empty());
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
