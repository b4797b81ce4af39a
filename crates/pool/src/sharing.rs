//! Written memory that hosts share without coherent caches: software flushes and invalidates around
//! a lock ("Exploring Allocation Policies in Disaggregated Non-Volatile Memories", MCHPC 2018,
//! section 2).
//!
//! Hosts take turns with the lock. Whoever has it drops the lines that it may have from before,
//! reads and writes, flushes what it wrote, and gives the lock back. Each host has the caches of
//! its machine, and every copy of a line knows by which write it was made: a read that finds an
//! older one than the last write under the lock is stale, and is reported.

use crate::system::{PoolDescription, SystemDescription};
use crate::PoolError;
use serde::Serialize;
use std::collections::HashMap;
use terrace_cache::{Hierarchy, HierarchySpec, LevelSpec, MemoryTraffic};
use terrace_machine::Machine;
use terrace_types::{BytesPerSec, Seed};

/// Bytes of a line.
const LINE: u64 = 64;
/// Picoseconds in a nanosecond.
const PS: u64 = 1000;
/// Lines of the region and sections of a run at most: a minute of this computer.
const MOST_LINES: u64 = 1 << 24;
const MOST_SECTIONS: u64 = 1 << 24;

/// What the hosts do with the region that they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SharingProgram {
    /// Lines of the region.
    pub lines: u64,
    /// Lines that a host reads while it has the lock, any of the region.
    pub reads: u64,
    /// Lines that it writes then, of those that it has read first.
    pub writes: u64,
    /// Times that the lock is taken, by all hosts together.
    pub sections: u64,
    /// What a host writes is flushed before it gives the lock back.
    pub flushes: bool,
    /// What a host may have from before is dropped when it has the lock.
    pub invalidates: bool,
}

impl Default for SharingProgram {
    /// A page, a quarter of which is read and an eighth written.
    fn default() -> Self {
        let (flushes, invalidates) = (true, true);
        Self { lines: 64, reads: 16, writes: 8, sections: 1000, flushes, invalidates }
    }
}

/// A read that found an older value than the last one written under the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StaleRead {
    /// Who read.
    pub host: String,
    /// The section, from 0.
    pub section: u64,
    /// The line of the region.
    pub line: u64,
    /// Who wrote what it should have read.
    pub writer: String,
    /// The section in which that was written.
    pub written_in: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharingOutcome {
    /// Hosts.
    pub hosts: usize,
    /// Modelled seconds of all sections, one after the other.
    pub seconds: f64,
    /// Mean time of a section in nanoseconds: taking the lock and giving it back,
    pub lock_ns: f64,
    /// dropping lines and flushing them,
    pub coherence_ns: f64,
    /// and waiting for lines that no cache has.
    pub read_ns: f64,
    /// Lines read from the pool.
    pub lines_read: u64,
    /// Lines written to the pool.
    pub lines_written: u64,
    /// Reads that found an older value than the last one written.
    pub stale_reads: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_stale_read: Option<StaleRead>,
    /// Times that a line in the pool was overwritten by an older one.
    pub lost_updates: u64,
}

/// A write: its section, plus one; 0 is what the region begins with.
type WriteVersion = u64;

/// One host's caches, and which write made each copy that they hold.
#[derive(Debug)]
struct SharingHost {
    name: String,
    caches: Hierarchy,
    copies: HashMap<u64, WriteVersion>,
    /// Of a line to the pool and back.
    read_ps: u64,
    write_ps: u64,
    bandwidth: Option<BytesPerSec>,
}

/// What the pool holds, and what it should.
#[derive(Debug, Default)]
struct SharedRegion {
    /// By line: the write that made it.
    memory: HashMap<u64, WriteVersion>,
    /// By line: the last write, and who made it.
    latest: HashMap<u64, (WriteVersion, usize)>,
    lost: u64,
    read: u64,
    written: u64,
}

impl SharedRegion {
    /// What reaches the pool from a host with these copies.
    fn take(&mut self, copies: &mut HashMap<u64, WriteVersion>, traffic: MemoryTraffic) {
        match traffic {
            MemoryTraffic::Read(line) => {
                self.read += 1;
                copies.insert(line, self.memory.get(&line).copied().unwrap_or(0));
            }
            MemoryTraffic::Write(line) => {
                self.written += 1;
                let version = copies.get(&line).copied().unwrap_or(0);
                let before = self.memory.insert(line, version).unwrap_or(0);
                self.lost += u64::from(version < before);
            }
        }
    }
}

impl SharingHost {
    /// What `count` lines take one after the other, the way and the medium once: they follow each
    /// other as fast as the narrowest link and the pool let them.
    fn batch_ps(&self, count: u64, one_ps: u64) -> u64 {
        if count == 0 {
            return 0;
        }
        let each = self.bandwidth.map_or(0, |b| LINE * 1_000_000_000_000 / b.get().max(1));
        one_ps + (count - 1) * each
    }

    fn access(&mut self, region: &mut SharedRegion, line: u64, write: bool) -> WriteVersion {
        let Self { caches, copies, .. } = self;
        caches.access_line(0, line, write, &mut |traffic| region.take(copies, traffic));
        copies.get(&line).copied().unwrap_or(0)
    }

    /// The line leaves the caches, written to the pool where it was changed.
    fn flush(&mut self, region: &mut SharedRegion, line: u64) {
        let Self { caches, copies, .. } = self;
        caches.clflush(line, &mut |traffic| region.take(copies, traffic));
        copies.remove(&line);
    }
}

/// Runs `program` on all hosts of `system`, whose groups have these machines, in a region of its
/// first pool.
///
/// # Errors
/// [`PoolError`]: no pool, no way to it, a machine whose caches are not modelled, a program that is
/// too large.
pub fn simulate_sharing(
    system: &SystemDescription,
    file: &str,
    machines: &[Machine],
    program: &SharingProgram,
    seed: Seed,
) -> Result<SharingOutcome, PoolError> {
    let wrong = |key: &str, why: String| PoolError::Value {
        file: file.to_owned(),
        line: None,
        key: key.to_owned(),
        why,
    };
    for (key, value, most) in [
        ("lines", program.lines, MOST_LINES),
        ("reads", program.reads, MOST_LINES),
        ("writes", program.writes, program.reads),
        ("sections", program.sections, MOST_SECTIONS),
    ] {
        if value == 0 || value > most {
            return Err(wrong(key, format!("{value}; give 1 to {most}")));
        }
    }
    let mut hosts = list_hosts(system, file, machines)
        .and_then(|hosts| hosts.ok_or_else(|| wrong("pool", "there is none".to_owned())))?;
    let mut region = SharedRegion::default();
    let mut outcome = SharingOutcome {
        hosts: hosts.len(),
        seconds: 0.0,
        lock_ns: 0.0,
        coherence_ns: 0.0,
        read_ns: 0.0,
        lines_read: 0,
        lines_written: 0,
        stale_reads: 0,
        first_stale_read: None,
        lost_updates: 0,
    };
    let mut chance = seed.0;
    // The lock is a word that the manager keeps: to it and back, twice.
    let service_ps = system.manager.requests_per_us.map_or(0, |rate| 1_000_000 / rate);
    let lock_ps = 2 * (2 * system.manager.latency_ns * PS + service_ps);
    let (mut coherence_ps, mut read_ps) = (0_u64, 0_u64);
    for section in 0..program.sections {
        let at = (draw(&mut chance) % hosts.len() as u64) as usize;
        let lines: Vec<u64> =
            (0..program.reads).map(|_| draw(&mut chance) % program.lines).collect();
        let mut run = SharingSection { program, region: &mut region, section, at };
        coherence_ps += run.invalidate(&mut hosts[at]);
        let (took, stale) = run.read(&mut hosts[at], &lines);
        read_ps += took;
        outcome.stale_reads += stale.len() as u64;
        if let (None, Some((line, (version, writer)))) = (&outcome.first_stale_read, stale.first())
        {
            outcome.first_stale_read = Some(StaleRead {
                host: hosts[at].name.clone(),
                section,
                line: *line,
                writer: hosts[*writer].name.clone(),
                written_in: version - 1,
            });
        }
        coherence_ps += run.write(&mut hosts[at], &lines);
    }
    let sections = program.sections as f64;
    let mean_ns = |ps: u64| ps as f64 / PS as f64 / sections;
    outcome.lock_ns = lock_ps as f64 / PS as f64;
    (outcome.coherence_ns, outcome.read_ns) = (mean_ns(coherence_ps), mean_ns(read_ps));
    outcome.seconds = (outcome.lock_ns + outcome.coherence_ns + outcome.read_ns) * sections / 1e9;
    (outcome.lines_read, outcome.lines_written) = (region.read, region.written);
    outcome.lost_updates = region.lost;
    Ok(outcome)
}

/// One host with the lock.
struct SharingSection<'a> {
    program: &'a SharingProgram,
    region: &'a mut SharedRegion,
    section: u64,
    at: usize,
}

/// A line, and the write that should have been read there, with who made it.
type StaleLine = (u64, (WriteVersion, usize));

impl SharingSection<'_> {
    /// Drops what the host has from before; what that takes, picoseconds.
    fn invalidate(&mut self, host: &mut SharingHost) -> u64 {
        if !self.program.invalidates {
            return 0;
        }
        let before = self.region.written;
        let lines: Vec<u64> = host.copies.keys().copied().collect();
        lines.into_iter().for_each(|line| host.flush(self.region, line));
        host.batch_ps(self.region.written - before, host.write_ps)
    }

    /// Reads the lines; what waiting for the pool takes, and those that were stale.
    fn read(&mut self, host: &mut SharingHost, lines: &[u64]) -> (u64, Vec<StaleLine>) {
        let (before, mut stale) = (self.region.read, Vec::new());
        for line in lines {
            let found = host.access(self.region, *line, false);
            let latest = self.region.latest.get(line).copied().unwrap_or((0, self.at));
            if found != latest.0 {
                stale.push((*line, latest));
            }
        }
        (host.batch_ps(self.region.read - before, host.read_ps), stale)
    }

    /// Writes the first of the lines and flushes them; what flushing takes, picoseconds.
    fn write(&mut self, host: &mut SharingHost, lines: &[u64]) -> u64 {
        let written = &lines[..self.program.writes as usize];
        for line in written {
            host.access(self.region, *line, true);
            host.copies.insert(*line, self.section + 1);
            self.region.latest.insert(*line, (self.section + 1, self.at));
        }
        if !self.program.flushes {
            return 0;
        }
        let before = self.region.written;
        written.iter().for_each(|line| host.flush(self.region, *line));
        host.batch_ps(self.region.written - before, host.write_ps)
    }
}

/// The hosts with empty caches; `None`: the system has no pool.
fn list_hosts(
    system: &SystemDescription,
    file: &str,
    machines: &[Machine],
) -> Result<Option<Vec<SharingHost>>, PoolError> {
    let (pools, fabric) = (system.list_pools(file)?, system.fabric(file)?);
    let Some(pool) = pools.first() else { return Ok(None) };
    let fabric_wrong = |why| PoolError::Fabric { file: file.to_owned(), line: None, why };
    let mut hosts = Vec::new();
    for (name, group) in system.list_hosts() {
        let at = system.hosts.iter().position(|g| g.name == group.name);
        let wrong = |why: String| PoolError::Value {
            file: file.to_owned(),
            line: None,
            key: format!("host {:?}, machine", group.name),
            why,
        };
        let Some(machine) = at.and_then(|at| machines.get(at)) else {
            return Err(wrong("has no machine; give one for each group".to_owned()));
        };
        let level =
            |c: &terrace_machine::CacheLevel| LevelSpec::new(c.size.get(), c.ways, c.shared);
        let levels = machine.caches.iter().map(level).collect();
        let spec = HierarchySpec { cores: 1, line: LINE, levels };
        let caches = Hierarchy::new(&spec).map_err(|e| wrong(e.to_string()))?;
        let ends = (fabric.find(&name), fabric.find(&pool.name));
        let (Some(from), Some(to)) = ends else { return Err(wrong("is not in the fabric".into())) };
        let there = fabric.latency_ps(from, to).map_err(fabric_wrong)?;
        let back = fabric.latency_ps(to, from).map_err(fabric_wrong)?;
        let narrowest = fabric.route_bandwidth(from, to).map_err(fabric_wrong)?;
        hosts.push(SharingHost {
            name,
            caches,
            copies: HashMap::new(),
            read_ps: there + back + pool.read.get() * PS,
            write_ps: there + back + pool.write.get() * PS,
            bandwidth: narrowest.into_iter().chain([slowest(pool)]).min(),
        });
    }
    Ok(Some(hosts))
}

/// What a pool reads or writes, whichever is less.
fn slowest(pool: &PoolDescription) -> BytesPerSec {
    pool.read_bandwidth.min(pool.write_bandwidth)
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn draw(chance: &mut u64) -> u64 {
    *chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*chance ^ (*chance >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::system_preset_text;

    fn run(hosts: u32, program: SharingProgram) -> SharingOutcome {
        let text = system_preset_text("opal").unwrap();
        let mut system = SystemDescription::from_toml(text, "opal").unwrap();
        system.hosts[0].count = hosts;
        let machines = [terrace_machine::preset("disaggregated").unwrap()];
        simulate_sharing(&system, "opal", &machines, &program, Seed(1)).unwrap()
    }

    #[test]
    fn with_flushes_and_invalidates_nothing_is_stale_and_without_either_something_is() {
        for hosts in [1, 2, 8, 64] {
            let both = run(hosts, SharingProgram::default());
            assert_eq!((both.stale_reads, both.lost_updates), (0, 0), "{hosts} hosts");
            for (flushes, invalidates) in [(true, false), (false, true), (false, false)] {
                let program = SharingProgram { flushes, invalidates, ..SharingProgram::default() };
                let outcome = run(hosts, program);
                let some = hosts > 1;
                assert_eq!(outcome.stale_reads > 0, some, "{hosts} hosts, {program:?}");
                if let Some(stale) = outcome.first_stale_read {
                    assert_ne!(stale.host, stale.writer, "a host sees its own writes");
                    assert!(stale.written_in < stale.section && stale.line < 64, "{stale:?}");
                }
            }
        }
        let program = SharingProgram { flushes: false, ..SharingProgram::default() };
        assert!(run(2, program).lost_updates > 0, "dirty lines go out over newer ones");
    }

    #[test]
    fn a_stale_read_is_the_one_that_hand_computation_finds() {
        // One line that everybody reads and writes; who reads after another wrote is stale where
        // nobody drops it, but for its first time.
        let program = SharingProgram {
            lines: 1,
            reads: 1,
            writes: 1,
            sections: 200,
            flushes: true,
            invalidates: false,
        };
        // With flushes the line leaves the writer's caches, too: it reads it anew each time.
        assert_eq!(run(2, program).stale_reads, 0);
        let program = SharingProgram { flushes: false, ..program };
        let outcome = run(2, program);
        // Both hosts keep their own copy for ever: stale is every read after the other's write.
        let mut chance = Seed(1).0;
        let turns: Vec<u64> = (0..200)
            .map(|_| {
                let host = draw(&mut chance) % 2;
                draw(&mut chance);
                host
            })
            .collect();
        let changes = turns.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
        assert_eq!(outcome.stale_reads, changes);
        let first = outcome.first_stale_read.unwrap();
        let section = turns.windows(2).position(|pair| pair[0] != pair[1]).unwrap() as u64 + 1;
        assert_eq!((first.section, first.written_in), (section, section - 1));
    }

    #[test]
    fn times_are_those_of_the_way_and_of_the_medium() {
        let program = SharingProgram {
            lines: 1 << 20,
            reads: 3,
            writes: 2,
            sections: 1,
            flushes: true,
            invalidates: true,
        };
        let outcome = run(1, program);
        // Manager: 2 us each way, twice, and twice 16 ps, whole picoseconds.
        assert!((outcome.lock_ns - 8_000.03).abs() < 0.01, "{}", outcome.lock_ns);
        // 40 ns of fabric and 300 or 1000 of medium, then a line in 64 B / 1.024 GB/s.
        assert!((outcome.read_ns - (340.0 + 2.0 * 62.5)).abs() < 0.01, "{}", outcome.read_ns);
        assert!((outcome.coherence_ns - (1_040.0 + 62.5)).abs() < 0.01, "{}", outcome.coherence_ns);
        assert_eq!((outcome.lines_read, outcome.lines_written), (3, 2));
    }

    #[test]
    fn what_is_too_large_or_empty_is_refused() {
        let text = system_preset_text("opal").unwrap();
        let mut system = SystemDescription::from_toml(text, "opal").unwrap();
        let machines = [terrace_machine::preset("disaggregated").unwrap()];
        let refused = |system: &SystemDescription, program| {
            let outcome = simulate_sharing(system, "opal", &machines, &program, Seed(1));
            outcome.unwrap_err().to_string()
        };
        let none = SharingProgram { lines: 0, ..SharingProgram::default() };
        assert!(refused(&system, none).contains("lines: 0; give 1 to"));
        let more = SharingProgram { writes: 17, ..SharingProgram::default() };
        assert!(refused(&system, more).contains("writes: 17; give 1 to 16"));
        system.pools.clear();
        system.links.pop();
        assert!(refused(&system, SharingProgram::default()).contains("pool: there is none"));
    }
}
