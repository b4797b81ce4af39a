//! What the kernel and the tiering daemon cost, as data of a machine. The simulator alone asks.
//!
//! Costs of the kernel are times; costs of the daemon are instructions, which take what the
//! machine's cores need for them. Two profiles hold the usual figures: `lab` for the emulated
//! machines, where entering the kernel costs no more than its instructions, and `host` for real
//! ones. A machine file names a profile and may replace single figures.

use crate::section::Section;
use crate::MachineError;
use std::fmt::Write as _;

/// A span of time in picoseconds: costs a page are fractions of a nanosecond apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Picos(pub u64);

/// The longest cost that is believed: one second.
const MAX_PICOS: f64 = 1e12;
/// The most instructions that are believed for one page.
const MAX_INSTRUCTIONS: u64 = 1 << 20;

/// Which usual figures hold where a machine file gives none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CostProfile {
    /// An emulated machine of the lab.
    Lab,
    /// A real machine.
    #[default]
    Host,
}

impl CostProfile {
    const NAMED: [(&'static str, Self); 2] = [("lab", Self::Lab), ("host", Self::Host)];

    fn read(section: &Section<'_, '_>) -> Result<Self, MachineError> {
        let Some(name) = section.string("profile")? else { return Ok(Self::default()) };
        let found = Self::NAMED.iter().find(|(known, _)| *known == name);
        found.map(|f| f.1).ok_or_else(|| section.bad_string("profile", name, "lab or host"))
    }
}

/// How the kernel's own memory (`struct page`, page tables, pages that it fills with zeros) is
/// charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelMemoryModel {
    /// It lies on the nodes and goes through caches and buses as the program's does.
    #[default]
    Modelled,
    /// It takes a fixed time. For a machine that is scaled down: its buses are slower by a factor,
    /// and its `struct page`s are not fewer by that factor.
    Fixed,
}

impl KernelMemoryModel {
    const NAMED: [(&'static str, Self); 2] = [("modelled", Self::Modelled), ("fixed", Self::Fixed)];

    fn name(self) -> &'static str {
        match self {
            Self::Modelled => "modelled",
            Self::Fixed => "fixed",
        }
    }
}

/// Defines the kernel's costs: each with its figures in the two profiles, picoseconds.
macro_rules! kernel_costs {
    ($($(#[$doc:meta])* $name:ident, $lab:literal, $host:literal;)*) => {
        /// What the kernel costs: times of single operations, buses and caches idle.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct KernelCosts {
            /// How its own memory is charged.
            pub memory: KernelMemoryModel,
            $($(#[$doc])* pub $name: Picos,)*
        }

        impl KernelCosts {
            /// Keys of a machine file's `[kernel]`.
            pub(crate) const KEYS: &'static [&'static str] =
                &["profile", "memory", $(concat!(stringify!($name), "_ns"),)*];

            /// The usual figures.
            #[must_use]
            pub const fn profile(profile: CostProfile) -> Self {
                let memory = KernelMemoryModel::Modelled;
                match profile {
                    CostProfile::Lab => Self { memory, $($name: Picos($lab),)* },
                    CostProfile::Host => Self { memory, $($name: Picos($host),)* },
                }
            }

            /// Reads `[kernel]`.
            pub(crate) fn read(section: &Section<'_, '_>) -> Result<Self, MachineError> {
                let mut costs = Self::profile(CostProfile::read(section)?);
                if let Some(name) = section.string("memory")? {
                    let found = KernelMemoryModel::NAMED.iter().find(|(known, _)| *known == name);
                    let Some((_, memory)) = found else {
                        return Err(section.bad_string("memory", name, "modelled or fixed"));
                    };
                    costs.memory = *memory;
                }
                $(
                    let key = concat!(stringify!($name), "_ns");
                    if let Some(ps) = section.picos(key, MAX_PICOS)? {
                        costs.$name = Picos(ps);
                    }
                )*
                Ok(costs)
            }

            /// Writes `[kernel]` where it is not as usual.
            pub(crate) fn write(&self, out: &mut String) {
                if *self == Self::default() {
                    return;
                }
                let (profile, base) = match *self == Self::profile(CostProfile::Lab) {
                    true => ("lab", *self),
                    false => ("host", Self::default()),
                };
                // Writing to a String cannot fail.
                let _ = write!(out, "\n[kernel]\nprofile = \"{profile}\"\n");
                if self.memory != base.memory {
                    let _ = writeln!(out, "memory = \"{}\"", self.memory.name());
                }
                $(
                    if self.$name != base.$name {
                        let (ns, ps) = (self.$name.0 / 1000, self.$name.0 % 1000);
                        let _ = writeln!(out, "{}_ns = {ns}.{ps:03}", stringify!($name));
                    }
                )*
            }
        }
    };
}

kernel_costs! {
    /// A page's first touch, beside memory: entering the kernel and finding a page. Lab: with the
    /// zeros that go through the caches, filling memory takes as long as in the lab (ADR 0249).
    /// Host: taken from the lab.
    first_touch, 650_000, 650_000;
    /// Filling a base page with zeros where that is not done line by line through the caches
    /// ([`KernelMemoryModel::Fixed`], and huge pages, 512 times that): an estimate for Linux 6.12.
    zero_page, 250_000, 250_000;
    /// The first write to a page that is watched for writes. Lab: 0.445 us, by 202,000 such faults
    /// more or less beside the same program (ADR 0261). Host: 0.7 to 1.0 us on Linux 6.18
    /// (soft-dirty and write-protection faults alike).
    write_fault, 450_000, 850_000;
    /// Clearing a page's accessed bit (`clear_refs` = 1), which changes the entry and the flags of
    /// its `struct page` (`clear_refs_pte_range`, fs/proc/task_mmu.c): 0.86 ms for 40,960 pages in
    /// the lab (`crates/track/examples/livecheck.rs`). Host: taken from the lab.
    clear_accessed, 21_000, 21_000;
    /// Reading a page's accessed bit from its page table and counting it: the kernel's copy, the
    /// walk and the counting are 4, 4 and 3 ns in the lab (ADR 0261). Host: taken from the lab.
    read_accessed, 11_000, 11_000;
    /// Clearing a page's soft-dirty bit (`clear_refs` = 4). With `scan_written` 30 ns: 7 ms for 900
    /// MiB in `docs/results/tracking.md`. Host: taken from the lab.
    clear_soft_dirty, 12_000, 12_000;
    /// Asking whether a page was written (`PAGEMAP_SCAN`); see `clear_soft_dirty`.
    scan_written, 18_000, 18_000;
    /// Looking up a frame number in `/proc/PID/pagemap`, for which the kernel reads the frame's
    /// `struct page`: 1.4 ms for 40,960 pages in the lab. Host: taken from the lab.
    look_up_frame, 34_000, 34_000;
    /// Finding whether such a page is huge, and noting its node: 1.1 ms for as many.
    note_frame, 27_000, 27_000;
    /// Asking `move_pages` where a page is, as the mover does before it moves it: 0.15 us on a
    /// host, and charged so in the lab.
    query_page, 150_000, 150_000;
    /// Taking away the translation of one huge page (`MADV_COLD`), one a call: 1.2 us on an AMD
    /// EPYC virtual machine as in the lab, 0.5 to 1.1 by eight.
    cool_huge_page, 1_200_000, 1_200_000;
    /// Taking away the translations of eight base pages that lie together, one range of a call of
    /// eight (`MADV_COLD`): 13.5 ms in 63 spot checks of some 80 ranges on `iterates` in the lab,
    /// 8.2 ms in 17 on `bloom` (docs/adr/0363); the former.
    cool_block, 2_700_000, 2_700_000;
    /// Reading their eight entries back: 1.2 ms for 5,000 there.
    read_block, 230_000, 230_000;
    /// Reading the entries of huge pages back, at most a table of 512, for each of which a word is
    /// read. An estimate after `read_accessed`.
    read_huge_table, 3_000_000, 3_000_000;
    /// Finding a process's page tables for the first time, by the kernel's own pointers (ADR 0044).
    find_page_tables, 11_000_000, 11_000_000;
    /// An interrupt for dropping translations on a core that runs the program: an estimate;
    /// published figures for x86 lie between 0.5 and 4 us with the wait of the sender.
    tlb_shootdown, 1_000_000, 1_000_000;
    /// How long one call of `move_pages` is blocked beside its work where the program wants all
    /// cores: it begins with an expedited grace period (`lru_cache_disable`, mm/swap.c), and the
    /// thread that has the core meanwhile keeps it to the end of a slice (`RUN_TO_PARITY`,
    /// kernel/sched/fair.c). By 103 calls in the lab, whose waits are 0, 3, 6 and 9 ms (ADR 0261).
    move_call_wait, 430_000_000, 430_000_000;
    /// The same for each microsecond of CPU time that the call takes.
    move_wait_per_us, 280_000, 280_000;
    /// One record of the processor's sampling, on the core that makes it: an estimate in the order
    /// of what is published for x86.
    sample_record, 250_000, 250_000;
    /// An interrupt that empties the processor's buffer of samples: about 20,000 cycles on a Xeon
    /// Phi of 1.4 GHz (the paper on PEBS under McKernel, MCHPC'18, section on interrupts).
    sample_interrupt, 14_000_000, 14_000_000;
    /// Reading the buffer of samples, beside the samples: an estimate.
    drain_samples, 2_000_000, 2_000_000;
    /// Reading one sample and counting it by page: an estimate, a cache miss or two.
    drain_sample, 200_000, 200_000;
    /// One check of one DAMON region, bit asked for and next bit cleared: 1,000 regions every 5 ms
    /// took 9% to 19% of a core in the lab's guest, 0.45 to 0.95 us each; the middle.
    sample_region, 700_000, 700_000;
    /// From exec to a program's first instruction of its own: 2.45 ms in the lab
    /// (`terrace-workload` there, to its first region of interest).
    exec, 2_450_000_000, 2_450_000_000;
    /// How much later than asked for a sleeper goes on: the kernel's timer slack
    /// (`init_task.timer_slack_ns`, 50 us) and the wake-up; 59 us in the lab, idle or busy.
    timer_slack, 59_000_000, 59_000_000;
}

impl Default for KernelCosts {
    fn default() -> Self {
        Self::profile(CostProfile::Host)
    }
}

/// Defines the daemon's costs: key, figure.
macro_rules! daemon_costs {
    ($($(#[$doc:meta])* $name:ident, $figure:literal, $key:literal;)*) => {
        /// What the tiering daemon (`terrace run`) costs: instructions of single operations, and
        /// the memory that it has for itself. Both profiles have the same figures: instructions are
        /// alike everywhere, and take what a core of the machine needs for them. All figures but
        /// the last three are instructions of `terrace run` in the lab, counted by the lab's plugin
        /// by kernel symbol and system call (ADR 0261).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct DaemonCosts {
            $($(#[$doc])* pub $name: u32,)*
        }

        impl Default for DaemonCosts {
            fn default() -> Self {
                Self { $($name: $figure,)* }
            }
        }

        impl DaemonCosts {
            /// Keys of a machine file's `[daemon]`.
            pub(crate) const KEYS: &'static [&'static str] = &["profile", $($key,)*];

            /// Reads `[daemon]`.
            pub(crate) fn read(section: &Section<'_, '_>) -> Result<Self, MachineError> {
                CostProfile::read(section)?;
                let mut costs = Self::default();
                $(
                    if let Some(n) = section.integer($key, 0..=MAX_INSTRUCTIONS)? {
                        costs.$name = n as u32;
                    }
                )*
                Ok(costs)
            }

            /// Writes `[daemon]` where it is not as usual.
            pub(crate) fn write(&self, out: &mut String) {
                let usual = Self::default();
                if *self == usual {
                    return;
                }
                out.push_str("\n[daemon]\n");
                $(
                    if self.$name != usual.$name {
                        // Writing to a String cannot fail.
                        let _ = writeln!(out, "{} = {}", $key, self.$name);
                    }
                )*
            }
        }
    };
}

daemon_costs! {
    /// Merging the observations of a page's accesses into the heat map.
    merge_page, 100, "merge_page_instructions";
    /// Merging the observations of its writes.
    merge_written, 340, "merge_written_instructions";
    /// What the engine does with a page for any decision: sums by node, the journal's digest.
    account_page, 104, "account_page_instructions";
    /// Comparing a page's quick scan with what the heat map predicts: sample and comparison are a
    /// fifth of a full sample and decision (ADR 0055).
    compare_page, 152, "compare_page_instructions";
    /// A policy reads a page's entry in the snapshot. All that `hyplacer` does with most pages.
    scan_page, 60, "scan_page_instructions";
    /// A policy rates a page and keeps the rating in a histogram or list: `terrace` takes 160
    /// instructions a page that it scans and rates.
    rate_page, 100, "rate_page_instructions";
    /// A policy rates a page once more to choose what moves, in order of address: `terrace` takes
    /// 760 instructions a page where it plans, by two walks.
    walk_page, 380, "walk_page_instructions";
    /// One comparison of a policy that puts pages in order: `histogram` takes 920 instructions more
    /// than others for a page that moves, by sorts of some 4,096 pages (12 comparisons each).
    compare_items, 76, "compare_items_instructions";
    /// Accounts of mover and engine for a page that is to move.
    move_page, 480, "move_page_instructions";
    /// Bytes of the heat map a page (`docs/results/tracking.md`).
    heat_bytes, 10, "heat_bytes_per_page";
    /// Bytes kept of each page whose accessed bit is read.
    observation_bytes, 2, "observation_bytes_per_page";
    /// Base pages of the program's node that the daemon has for itself: its first pages, page
    /// tables, stack and descriptors in the kernel. In the lab 73, 6, 4 and 19 (`/proc/meminfo` of
    /// the node with and without it, beside `npb-cg` on `lab-dcpmm`).
    own_pages, 102, "own_pages";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{preset, preset_names, Machine};

    const SMALL: &str = "[[node]]\nid = 0\ncpus = [0]\ncapacity = \"1 GiB\"\n";

    fn read(sections: &str) -> Result<Machine, MachineError> {
        Machine::from_toml(&format!("{sections}\n{SMALL}"), "small")
    }

    #[test]
    fn a_profile_is_named_and_single_figures_replaced() {
        let machine = read("").unwrap();
        assert_eq!(machine.kernel, KernelCosts::profile(CostProfile::Host));
        let machine = read("[kernel]\nprofile = \"lab\"\nquery_page_ns = 99.5").unwrap();
        let lab = KernelCosts::profile(CostProfile::Lab);
        assert_eq!(machine.kernel, KernelCosts { query_page: Picos(99_500), ..lab });
        let machine = read("[daemon]\nrate_page_instructions = 7").unwrap();
        assert_eq!(machine.daemon, DaemonCosts { rate_page: 7, ..DaemonCosts::default() });
    }

    #[test]
    fn what_is_written_is_read_back() {
        for sections in [
            "[kernel]\nprofile = \"lab\"",
            "[kernel]\nmemory = \"fixed\"\nexec_ns = 1.001\nwrite_fault_ns = 450",
            "[daemon]\nown_pages = 0\nmove_page_instructions = 1048576",
        ] {
            let machine = read(sections).unwrap();
            assert_ne!(machine, read("").unwrap());
            let again = Machine::from_toml(&machine.to_toml(), "again").unwrap();
            assert_eq!((again.kernel, again.daemon), (machine.kernel, machine.daemon));
        }
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for (bad, named) in [
            ("[kernel]\nprofile = \"moon\"", "kernel.profile"),
            ("[kernel]\nmemory = \"none\"", "kernel.memory"),
            ("[kernel]\nquery_page_ns = -1", "kernel.query_page_ns"),
            ("[kernel]\nquery_page_ns = 1e10", "kernel.query_page_ns"),
            ("[kernel]\nquery_page = 1", "kernel.query_page"),
            ("[daemon]\nprofile = \"moon\"", "daemon.profile"),
            ("[daemon]\nown_pages = 1.5", "daemon.own_pages"),
            ("[daemon]\nown_pages = 9999999", "daemon.own_pages"),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(named), "{bad}: {error}");
        }
    }

    #[test]
    fn presets_of_real_machines_use_the_host_profile() {
        for name in preset_names() {
            let profile =
                if name.starts_with("lab-") { CostProfile::Lab } else { CostProfile::Host };
            assert_eq!(preset(name).unwrap().kernel, KernelCosts::profile(profile), "{name}");
        }
    }
}
