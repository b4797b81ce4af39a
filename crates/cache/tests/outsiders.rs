//! Exact against others: a textbook's trace, and valgrind's cachegrind on the same stream of
//! accesses.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_cache::{Cache, Hierarchy, HierarchySpec, LevelSpec};

/// One line of valgrind's lackey: kind, address, size.
fn parse(line: &str) -> Option<(char, u64, u64)> {
    let line = line.trim_start();
    let kind = line.chars().next().filter(|k| "ILSM".contains(*k))?;
    let (address, size) = line.get(1..)?.trim().split_once(',')?;
    Some((kind, u64::from_str_radix(address, 16).ok()?, size.trim().parse().ok()?))
}

fn outside(path: &str) -> Option<PathBuf> {
    let named = std::env::var_os("TERRACE_SHARED_DATA").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = ["../shared/data", "../../shared/data"].map(|p| root.join(p));
    named.into_iter().chain(beside).map(|p| p.join(path)).find(|p| p.exists())
}

/// 32 sets, one way, blocks of 32 bytes; instructions skipped, a modification is a load and then a
/// store.
#[test]
fn the_textbook_trace_gives_its_numbers() {
    let Some(path) = outside("traces/long.trace.zst") else {
        return println!(
            "skipped: traces/long.trace.zst is not there; set TERRACE_SHARED_DATA to \
            the outside data"
        );
    };
    let text = match Command::new("zstd").args(["-dcq"]).arg(&path).output() {
        Ok(out) if out.status.success() => String::from_utf8(out.stdout).unwrap(),
        _ => return println!("skipped: the zstd program is not installed"),
    };
    let level = LevelSpec::new(32 * 32, 1, false);
    let mut h = Hierarchy::new(&HierarchySpec { cores: 1, line: 32, levels: vec![level] }).unwrap();
    let mut plain = Cache::new(32 * 32, 1, 32).unwrap();
    let (mut lines, mut hits) = (0, 0);
    for line in text.lines() {
        let (kind, address, size) = parse(line).unwrap();
        lines += 1;
        let kinds: &[bool] = match kind {
            'L' => &[false],
            'S' => &[true],
            'M' => &[false, true],
            _ => &[],
        };
        for write in kinds {
            // The textbook counts an access once, by its first byte.
            h.access(0, address, size.min(1), *write, &mut |_| {});
            hits += u64::from(plain.access(address / 32, *write) == terrace_cache::LruOutcome::Hit);
        }
    }
    let count = h.counts()[0];
    assert_eq!(
        (lines, count.hits, count.misses, count.evictions),
        (267_988, 265_189, 21_775, 21_743)
    );
    assert_eq!(hits, 265_189);
}

const L1_WAYS: u32 = 2;
const L1_SIZE: u64 = 4 << 10;
const LL_WAYS: u32 = 4;
const LL_SIZE: u64 = 32 << 10;

/// Misses as cachegrind counts them: first-level data reads and writes, last-level data reads and
/// writes.
#[derive(Debug, PartialEq, Eq, Default)]
struct Misses {
    d1: [u64; 2],
    ll: [u64; 2],
}

/// Small geometries, so that small programs miss. Instructions have a cache of their own and share
/// the last level.
fn replay(lackey: &str) -> (Misses, [u64; 2]) {
    let level = |bytes, ways| {
        let levels = vec![LevelSpec::new(bytes, ways, false)];
        Hierarchy::new(&HierarchySpec { cores: 1, line: 64, levels }).unwrap()
    };
    let (mut i1, mut d1, mut ll) =
        (level(L1_SIZE, L1_WAYS), level(L1_SIZE, L1_WAYS), level(LL_SIZE, LL_WAYS));
    let (mut misses, mut refs) = (Misses::default(), [0, 0]);
    // cachegrind asks a level for both lines of an access that straddles two, and counts one miss
    // at most.
    let missed =
        |h: &mut Hierarchy, address, size| h.access(0, address, size, false, &mut |_| {}) > 0;
    for (kind, address, size) in lackey.lines().filter(|l| !l.starts_with('=')).filter_map(parse) {
        if kind == 'I' {
            if missed(&mut i1, address, size) {
                missed(&mut ll, address, size);
            }
            continue;
        }
        // A modification counts as a read.
        let which = usize::from(kind == 'S');
        refs[which] += 1;
        if missed(&mut d1, address, size) {
            misses.d1[which] += 1;
            misses.ll[which] += u64::from(missed(&mut ll, address, size));
        }
    }
    (misses, refs)
}

/// The summary of a cachegrind file as event to count.
fn summary(file: &str) -> std::collections::BTreeMap<String, u64> {
    let field =
        |name: &str| file.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().to_owned();
    let counts = field("summary:");
    let counts = counts.split_whitespace().map(|n| n.parse().unwrap());
    field("events:").split_whitespace().map(str::to_owned).zip(counts).collect()
}

#[test]
fn cachegrind_counts_the_same_misses_on_three_programs() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("skipped: valgrind is not installed (apt-get install valgrind)");
    }
    let dir = std::env::temp_dir().join(format!("terrace-cachegrind-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let out = dir.join("out");
    let text = dir.join("text");
    std::fs::write(
        &text,
        (0..400).map(|i| format!("{} line\n", i * 7919 % 1000)).collect::<String>(),
    )
    .unwrap();
    let programs: [Vec<&std::ffi::OsStr>; 3] = [
        vec!["true".as_ref()],
        vec!["seq".as_ref(), "1".as_ref(), "3000".as_ref()],
        vec!["sort".as_ref(), "-n".as_ref(), text.as_os_str()],
    ];
    let geometry = |name: &str, bytes: u64, ways: u32| format!("--{name}={bytes},{ways},64");
    for program in programs {
        let valgrind = |options: &[String]| {
            // Equal environments, so that both tools see equal stacks.
            let mut command = Command::new("valgrind");
            command
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                .env("LC_ALL", "C");
            command.args(options).args(&program).output().unwrap()
        };
        let ran = valgrind(&[
            "--tool=cachegrind".into(),
            "--cache-sim=yes".into(),
            format!("--cachegrind-out-file={}", out.display()),
            geometry("I1", L1_SIZE, L1_WAYS),
            geometry("D1", L1_SIZE, L1_WAYS),
            geometry("LL", LL_SIZE, LL_WAYS),
        ]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let theirs = summary(&std::fs::read_to_string(&out).unwrap());
        let lackey = valgrind(&["--tool=lackey".into(), "--trace-mem=yes".into()]);
        let (ours, refs) = replay(&String::from_utf8_lossy(&lackey.stderr));
        let their = |r: &str, w: &str| [theirs[r], theirs[w]];
        println!("{program:?}: {refs:?} data references, ours {ours:?}, theirs {theirs:?}");
        assert!(refs[0] > 10_000 && ours.d1[0] > 1_000, "too little to compare");
        assert_eq!(refs, their("Dr", "Dw"), "{program:?}: the two tools saw different streams");
        assert_eq!(
            ours,
            Misses { d1: their("D1mr", "D1mw"), ll: their("DLmr", "DLmw") },
            "{program:?}"
        );
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
