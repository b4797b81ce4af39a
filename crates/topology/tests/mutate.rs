//! Bounded fuzzing without tools: each fixture, damaged at random many times over, gives a machine
//! or one line. The seed is printed on failure; TERRACE_SEED runs that one alone.

mod common;

use common::fixture;
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use terrace_machine::{
    explain_with, from_hwloc_xml, rank, render_text, Machine, RankAttribute, Survey,
};
use terrace_topology::{gather, read_archive, survey, DiskTree};
use terrace_types::{Bytes, Seed};

/// Mutations of each fixture.
const ROUNDS: u64 = 2_000;

struct Random(Seed);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        let (value, next) = self.0.next();
        self.0 = next;
        (value % limit.max(1) as u64) as usize
    }
}

/// A damaged copy: bytes changed, cut, doubled, moved; numbers made huge; brackets broken.
fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    const HARSH: [&[u8]; 12] = [
        b"18446744073709551615",
        b"-1",
        b"nan",
        b"\"",
        b"<",
        b"&#x0;",
        b"[[",
        b"\0",
        b"\xff",
        b"0x",
        b"4294967296",
        b"../",
    ];
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(out.len());
        let len = random.below(32).min(out.len() - at);
        match random.below(7) {
            0 if !out.is_empty() => out[at] = random.below(256) as u8,
            1 if !out.is_empty() => out[at] ^= 1 << random.below(8),
            2 => drop(out.drain(at..at + len)),
            3 => {
                let copy = out[at..at + len].to_vec();
                let to = random.below(out.len());
                out.splice(to..to, copy);
            }
            4 => {
                let harsh = HARSH[random.below(HARSH.len())];
                out.splice(at..at + len.min(3), harsh.iter().copied());
            }
            5 => out.truncate(out.len() - random.below(out.len() / 4 + 1)),
            _ => {
                // A digit in place of a digit keeps the form and changes the meaning.
                if let Some(digit) = out[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                    *digit = b'0' + random.below(10) as u8;
                }
            }
        }
    }
    out
}

/// What every reader's result must stand.
fn use_up(survey: &Survey) {
    for by in [RankAttribute::Bandwidth, RankAttribute::Latency, RankAttribute::Capacity] {
        for node in survey.machine.nodes.iter().map(|n| n.id).take(3) {
            if let Ok(ranking) = rank(&survey.machine, by, Some(node)) {
                let text = render_text(&survey.machine, &ranking, "x");
                assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
            }
        }
    }
    assert!(!explain_with(&survey.machine, &survey.surroundings).is_empty());
    assert_eq!(survey.machine.check(), Ok(()));
    let again = Machine::from_toml(&survey.machine.to_toml(), "again");
    assert_eq!(again.as_ref(), Ok(&survey.machine));
}

fn run(name: &str, bytes: &[u8], read: impl Fn(&[u8]) -> Result<Survey, String>) {
    use_up(&read(bytes).unwrap_or_else(|error| panic!("{name} itself: {error}")));
    let only = std::env::var("TERRACE_SEED").ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = only.map_or(0..ROUNDS, |seed| seed..seed + 1);
    let mut read_well = 0;
    for seed in seeds {
        let mut random = Random(Seed(seed));
        let damaged = mutate(bytes, &mut random);
        let outcome = catch_unwind(AssertUnwindSafe(|| match read(&damaged) {
            Ok(survey) => {
                use_up(&survey);
                true
            }
            Err(error) => {
                assert!(!error.contains('\n') && error.len() < 1000, "{error}");
                false
            }
        }));
        match outcome {
            Ok(well) => read_well += usize::from(well),
            Err(_) => panic!("{name}: fails with TERRACE_SEED={seed}"),
        }
    }
    // Damage that is always noticed, or never, would test little.
    assert!(only.is_some() || (1..ROUNDS as usize).contains(&read_well), "{name}: {read_well}");
}

fn plain(machine: Machine) -> Survey {
    Survey { machine, surroundings: terrace_machine::Surroundings::default() }
}

#[test]
fn machine_files() {
    for name in ["minimal", "probed", "far-first"] {
        let bytes = fs::read(fixture(&format!("machines/{name}.toml"))).expect("fixture");
        run(name, &bytes, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            Machine::from_toml(&text, "x").map(plain).map_err(|e| e.to_string())
        });
    }
}

#[test]
fn hwloc_xml() {
    let bytes = fs::read(fixture("machines/hbm-and-cxl.xml")).expect("fixture");
    run("hbm-and-cxl", &bytes, |bytes| {
        from_hwloc_xml(&String::from_utf8_lossy(bytes), "x").map_err(|e| e.to_string())
    });
}

#[test]
fn gathered_trees() {
    for name in ["lab-cxl", "cxl-region", "snc4-hbm"] {
        let tree = DiskTree::new(fixture(&format!("sysfs/{name}")));
        let mut bytes = Vec::new();
        gather(&tree, Bytes(4096), &mut bytes).unwrap_or_else(|error| panic!("{error}"));
        run(name, &bytes, |bytes| {
            // Headers whose checksum fails are refused at once: mend them, so that what is below is
            // reached.
            let mended = mend(bytes);
            let tree = read_archive(&mended, "x").map_err(|e| e.to_string())?;
            survey(&tree, "x").map_err(|e| e.to_string())
        });
    }
}

/// Puts the right checksum into everything that looks like a header.
fn mend(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for header in out.chunks_exact_mut(512).filter(|h| h[257..262] == *b"ustar") {
        let sum: u32 = header
            .iter()
            .enumerate()
            .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) })
            .sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    out
}
