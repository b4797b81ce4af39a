//! How fast recordings are simulated, decoding included, beside a plain single-level LRU and
//! valgrind's cachegrind: `cargo run --release -p terrace-sim --example speed [--short] [--only
//! KERNEL] [--once N] [RECORDING...]`.
//!
//! `--once N` runs each once over N accesses, which is for counting instructions.
//!
//! Speeds are accesses a second of CPU time, the best of several runs, since others may be using
//! the machine.
#![forbid(unsafe_code)]

use std::io::Cursor;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use terrace_sim::recording::{OpenRecording, RecordingSource};
use terrace_sim::{all, simulate, Recording, RunOptions, SimInput, SimSetup};
use terrace_trace::{Access, Block, BlockKind, TraceHeader, TraceReader, TraceWriter};
use terrace_types::{BaselineId, Contender, PolicyId};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What takes a kernel's accesses: a recorder, or (for cachegrind) memory itself.
trait Memory {
    fn access(&mut self, address: u64, store: bool, gap: u32, depends: u8);
}

struct Recorder(TraceWriter<Vec<u8>>);

impl Memory for Recorder {
    fn access(&mut self, address: u64, store: bool, gap: u32, depends: u8) {
        let access = Access { address: BASE + address, size: 8, store, depends, gap, pc: 0 };
        // Writing to a Vec does not fail, and the addresses are in range.
        let _ = self.0.access(0, 0, &access);
    }
}

/// Real words, for cachegrind to watch.
struct Words(Vec<u64>, u64);

impl Memory for Words {
    #[inline(always)]
    fn access(&mut self, address: u64, store: bool, _gap: u32, _depends: u8) {
        let word = (address / 8) as usize;
        if store {
            self.0[word] = self.1;
        } else {
            self.1 = self.1.wrapping_add(std::hint::black_box(self.0[word]));
        }
    }
}

const BASE: u64 = 0x7f00_0000_0000;
/// Bytes that a kernel may touch.
const SPAN: u64 = 256 << 20;

fn mix(x: u64) -> u64 {
    let z = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Sparse matrix times vector of class A's size (14,000 rows of about 130 sorted columns), and two
/// vector updates.
fn cg_like(m: &mut impl Memory, mut accesses: i64) {
    const ROWS: u64 = 14_000;
    let (columns, matrix, x, y, begins) = (0, 64 << 20, 128 << 20, 129 << 20, 130 << 20);
    while accesses > 0 {
        let mut k = 0;
        for row in 0..ROWS {
            if accesses <= 0 {
                return;
            }
            m.access(begins + 8 * row, false, 4, 0);
            let mut column = mix(row) % 100;
            while column < ROWS {
                m.access(columns + 4 * k / 8 * 8, false, 2, 0);
                m.access(matrix + 8 * k, false, 1, 0);
                m.access(x + 8 * column, false, 1, 2);
                (k, accesses) = (k + 1, accesses - 3);
                column += 1 + mix(row << 20 ^ column) % 215;
            }
            m.access(y + 8 * row, true, 3, 0);
        }
        for row in 0..ROWS {
            m.access(y + 8 * row, false, 2, 0);
            m.access(x + 8 * row, false, 1, 0);
            m.access(x + 8 * row, true, 2, 0);
        }
        accesses -= 5 * ROWS as i64;
    }
}

/// Scanning vertices and looking at neighbours, a skewed choice among a million.
fn bfs_like(m: &mut impl Memory, mut accesses: i64) {
    let (levels, offsets, neighbours) = (0u64, 16 << 20, 32 << 20);
    let (mut vertex, mut edge) = (0u64, 0u64);
    while accesses > 0 {
        m.access(levels + 8 * vertex, false, 4, 0);
        accesses -= 1;
        if mix(vertex) % 4 == 0 {
            m.access(offsets + 8 * vertex, false, 3, 0);
            m.access(offsets + 8 * vertex + 8, false, 1, 0);
            for _ in 0..mix(vertex ^ 0x55) % 32 {
                m.access(neighbours + 8 * (edge % (16 << 20)), false, 3, 0);
                // Each bit set with 1 in 4: and of two.
                let target = mix(edge) & mix(edge ^ 0x99) & 0xf_ffff;
                m.access(levels + 8 * target, false, 1, 1);
                if mix(edge ^ 0x77) % 8 == 0 {
                    m.access(levels + 8 * target, true, 2, 0);
                }
                (edge, accesses) = (edge + 1, accesses - 2);
            }
        }
        vertex = (vertex + 1) % (1 << 20);
    }
}

/// Lines at random over all of the memory: every access misses.
fn misses(m: &mut impl Memory, accesses: i64) {
    for i in 0..accesses as u64 {
        m.access(mix(i) % (SPAN / 64) * 64, i % 4 == 0, 4, 0);
    }
}

const KERNELS: [&str; 3] = ["cg-like", "bfs-like", "all-miss"];

fn run_kernel(name: &str, memory: &mut impl Memory, accesses: i64) {
    match name {
        "cg-like" => cg_like(memory, accesses),
        "bfs-like" => bfs_like(memory, accesses),
        _ => misses(memory, accesses),
    }
}

fn recorded(name: &str, accesses: i64) -> Outcome<Arc<Vec<u8>>> {
    let header = TraceHeader { dependence: true, ..TraceHeader::default() };
    let mut recorder = Recorder(TraceWriter::new(Vec::new(), &header)?);
    run_kernel(name, &mut recorder, accesses);
    Ok(Arc::new(recorder.0.finish()?))
}

/// Seconds of CPU time that this thread has had.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// The least CPU seconds of `times` runs, and what the last gave.
fn least<T>(times: usize, mut run: impl FnMut() -> Outcome<T>) -> Outcome<(f64, T)> {
    let mut best: Option<(f64, T)> = None;
    for _ in 0..times {
        let began = cpu_seconds();
        let value = run()?;
        let took = (cpu_seconds() - began).max(1e-9);
        best = Some((best.map_or(took, |b| b.0.min(took)), value));
    }
    best.ok_or_else(|| "nothing was run".into())
}

/// A cache of one level, 8 ways, least recently used first out, and nothing else: what the
/// simulator is compared with.
struct PlainLru {
    tags: Vec<u64>,
    sets: u64,
}

impl PlainLru {
    const WAYS: usize = 8;

    fn access(&mut self, address: u64) -> bool {
        let tag = (address >> 6) + 1;
        let first = (tag % self.sets) as usize * Self::WAYS;
        let set = &mut self.tags[first..first + Self::WAYS];
        let at = set.iter().position(|t| *t == tag);
        set[..=at.unwrap_or(Self::WAYS - 1)].rotate_right(1);
        set[0] = tag;
        at.is_some()
    }
}

/// Decodes all and, if asked, hands each address to the plain cache; gives the count of accesses.
fn pass(open: &Arc<OpenRecording>, mut plain: Option<PlainLru>) -> Outcome<u64> {
    let mut reader = TraceReader::open(open()?)?;
    let (mut block, mut count, mut hits) = (Block::new()?, 0, 0u64);
    while reader.next_block(&mut block)? {
        if block.info().kind == BlockKind::Accesses {
            count += u64::from(block.info().count);
            if let Some(cache) = &mut plain {
                hits += block.addresses().iter().filter(|a| cache.access(**a)).count() as u64;
            }
        }
    }
    std::hint::black_box(hits);
    Ok(count)
}

fn measure(name: &str, open: Arc<OpenRecording>, machine: &str, times: usize) -> Outcome<f64> {
    let machine = terrace_machine::preset(machine).ok_or("no such preset")?;
    let recording = Recording::new(open.clone())?;
    let accesses = recording.accesses() as f64;
    let plan =
        SimSetup::from_machine(&machine, SimInput::Recording { name: name.to_owned(), recording })?;
    let simulated =
        least(times, || Ok(simulate(&plan, &PolicyId::FirstTouch.into(), RunOptions::default())?))?;
    let decoded = least(times, || pass(&open, None))?;
    let plain = least(times, || {
        let sets = (32 << 10) / 64 / PlainLru::WAYS as u64;
        pass(&open, Some(PlainLru { tags: vec![0; sets as usize * PlainLru::WAYS], sets }))
    })?;
    let speed = accesses / simulated.0 / 1e6;
    let of = |seconds: f64| accesses / seconds / 1e6;
    let run = &simulated.1;
    let missed = run.caches.last().map_or(0, |c| c.misses) as f64 / accesses;
    println!(
        "| {name} | {:.0} M | {:.1}% | {:.0} | {speed:.1} | {:.1} | {:.2} |",
        accesses / 1e6,
        missed * 100.0,
        of(decoded.0),
        of(plain.0),
        plain.0 / simulated.0,
    );
    Ok(speed)
}

/// Seconds of CPU time that programs started from here have had, those that have ended: in the
/// kernel's ticks of 10 ms.
fn children_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // User and system time of children are the 16th and 17th field; the third comes first after the
    // name.
    let ticks =
        after_name.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// M accesses a second of CPU time of valgrind's cachegrind on the same kernel, `None` where
/// valgrind is not there.
fn cachegrind(name: &str, accesses: i64) -> Option<f64> {
    let own = std::env::current_exe().ok()?;
    let took = |accesses: i64| {
        let mut command = Command::new("valgrind");
        command.args(["--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null"]);
        command.arg(&own).args(["--kernel", name, &accesses.to_string()]);
        let began = children_seconds();
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().ok()?;
        ended.success().then(|| children_seconds() - began)
    };
    // Starting, and filling the memory, are in both.
    let (short, long) = (took(accesses / 10)?, took(accesses)?);
    (long > short).then(|| accesses as f64 * 0.9 / (long - short) / 1e6)
}

/// Several policies over one recording, on one thread and on all.
fn several(open: &Arc<OpenRecording>, workers: usize) -> Outcome<()> {
    let machine = terrace_machine::preset("dram-dcpmm").ok_or("no such preset")?;
    let recording = Recording::new(open.clone())?;
    let (accesses, decodes) = (recording.accesses() as f64, recording.clone());
    let plan = SimSetup::from_machine(
        &machine,
        SimInput::Recording { name: "several".to_owned(), recording },
    )?;
    let policies: [Contender; 4] = [
        PolicyId::FirstTouch.into(),
        BaselineId::AllFast.into(),
        BaselineId::MemoryMode.into(),
        PolicyId::FirstTouch.into(),
    ];
    let mut first = None;
    for workers in [1, workers] {
        let (began, decoded) = (Instant::now(), decodes.blocks_decoded());
        all(&policies, workers, |p| simulate(&plan, p, RunOptions::default()))?;
        let speed = policies.len() as f64 * accesses / began.elapsed().as_secs_f64() / 1e6;
        let base = *first.get_or_insert(speed);
        println!(
            "{} policies, {workers} at a time: {speed:.1} M accesses/s by the clock, {:.2} times \
                one; {} blocks decoded",
            policies.len(),
            speed / base,
            decodes.blocks_decoded() - decoded
        );
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [kernel, name, accesses] = &args[..] {
        if kernel == "--kernel" {
            run_kernel(name, &mut Words(vec![1; (SPAN / 8) as usize], 0), accesses.parse()?);
            return Ok(());
        }
    }
    let only = args.iter().position(|a| a == "--only").and_then(|at| args.get(at + 1));
    let short = args.iter().any(|a| a == "--short");
    let once = args
        .iter()
        .position(|a| a == "--once")
        .and_then(|at| args.get(at + 1))
        .map(|n| n.parse())
        .transpose()?;
    let (accesses, times) = match once {
        Some(accesses) => (accesses, 1),
        None if short => (4_000_000, 2),
        None => (24_000_000, 5),
    };
    let machine = "dram-dcpmm";
    println!(
        "M accesses a second of CPU time on {machine}; decoding is in all columns but \
        `decoded` alone\n"
    );
    println!(
        "| recording | accesses | reach memory | decoded | simulated | plain LRU | simulated \
        / plain |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut speeds = Vec::new();
    let mut last: Option<Arc<OpenRecording>> = None;
    for name in KERNELS.into_iter().filter(|k| only.is_none_or(|o| o == k)) {
        let bytes = recorded(name, accesses)?;
        let open: Arc<OpenRecording> = Arc::new(move || {
            Ok(Box::new(Cursor::new(SharedBytes(bytes.clone()))) as Box<dyn RecordingSource>)
        });
        speeds.push((name, measure(name, open.clone(), machine, times)?));
        last.get_or_insert(open);
    }
    for file in args.iter().filter(|a| !a.starts_with("--") && Some(*a) != only) {
        let (path, name) = (file.clone(), file.rsplit('/').next().unwrap_or(file));
        let open: Arc<OpenRecording> = Arc::new(move || {
            Ok(Box::new(std::io::BufReader::new(std::fs::File::open(&path)?))
                as Box<dyn RecordingSource>)
        });
        measure(name, open, machine, times)?;
    }
    if only.is_some() {
        return Ok(());
    }
    println!();
    for (name, speed) in speeds {
        match cachegrind(name, if short { 2_000_000 } else { 20_000_000 }) {
            Some(other) => {
                println!(
                    "{name}: {:.1} times cachegrind ({other:.2} M accesses/s of CPU time)",
                    speed / other
                )
            }
            None => println!("{name}: valgrind did not run; not compared with cachegrind"),
        }
    }
    if let Some(open) = last {
        several(&open, std::thread::available_parallelism().map_or(1, usize::from))?;
    }
    Ok(())
}

/// Bytes that several readers share.
struct SharedBytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
