//! The migration study of section IV of Perarnau et al., "Exploring Data Migration for Future
//! Deep-Memory Many-Core Systems": how long it takes to have data of one node on another, by moving
//! its pages and by copying it.
//!
//! `migration_study from=NODE to=NODE serial=KIB[,KIB...] parallel=MIB threads=N[,N...] repeat=N
//! [pages=base|huge]`
//!
//! As fairly as the paper's: the source is touched and bound before the clock; `memcpy` pays for
//! faulting its target in and for giving the source back. `memcpy (prefaulted)` pays for neither,
//! as buffers that are kept do not. Threads have equal parts and a CPU each, begin together, and
//! the last to end counts. `terrace` is the mover that all of Terrace shares, which is asked by one
//! thread, on any CPU, and divides the work itself. Every page is looked up and every word compared
//! afterwards.
//!
//! Prints a table: threads, bytes, method, best and median time of the repetitions.

use std::ops::Range;
use std::sync::Barrier;
use terrace_migrate::staging::copy;
use terrace_migrate::{Bulk, MoveCosts};
use terrace_sys::{
    move_pages, now, page_size, pin, query_pages, AnonymousMapping, MappingPages, PageStatus,
};
use terrace_types::{Bytes, CpuId, NodeId, Pid, Tick, Vpn};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    MovePages,
    Mbind,
    Copy,
    CopyPrefaulted,
    Shared,
}

const METHODS: [(Method, &str); 5] = [
    (Method::MovePages, "move_pages"),
    (Method::Mbind, "mbind"),
    (Method::Copy, "memcpy"),
    (Method::CopyPrefaulted, "memcpy (prefaulted)"),
    (Method::Shared, "terrace"),
];

struct Study {
    from: NodeId,
    to: NodeId,
    pages: MappingPages,
}

fn me() -> Pid {
    Pid(std::process::id() as i32)
}

fn pages(memory: &AnonymousMapping, range: &Range<usize>) -> Vec<Vpn> {
    let page = page_size().get() as usize;
    range
        .clone()
        .step_by(page)
        .map(|at| Vpn(((memory.as_ptr() as usize + at) / page) as u64))
        .collect()
}

fn words(memory: &mut AnonymousMapping) -> &mut [u64] {
    // SAFETY: a mapping is aligned, zero at first and holds so many bytes; nobody else reaches it
    // while it is borrowed.
    unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast(), memory.len() / 8) }
}

fn mark(at: usize) -> u64 {
    (at as u64 ^ 0x5bd1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn bound(bytes: usize, node: NodeId, pages: MappingPages) -> Result<AnonymousMapping, String> {
    let memory = AnonymousMapping::new(Bytes(bytes as u64), pages).map_err(|e| e.to_string())?;
    memory.bind(node).map_err(|e| e.to_string())?;
    Ok(memory)
}

impl Study {
    /// Nanoseconds.
    fn once(&self, method: Method, bytes: usize, threads: usize) -> Result<u64, String> {
        let mut source = bound(bytes, self.from, self.pages)?;
        words(&mut source).iter_mut().enumerate().for_each(|(at, word)| *word = mark(at));
        let mut target = bound(bytes, self.to, self.pages)?;
        if method == Method::CopyPrefaulted {
            target.prefault(0..bytes).map_err(|e| e.to_string())?;
        }
        // What was just written must not be dirty in the cache when the clock begins.
        let mut other = bound(16 << 20, self.from, MappingPages::Base)?;
        other.prefault(0..other.len()).map_err(|e| e.to_string())?;
        std::hint::black_box(words(&mut other).iter().fold(0_u64, |a, b| a.wrapping_add(*b)));
        let page = page_size().get() as usize;
        let each = bytes.div_ceil(threads).next_multiple_of(page);
        let gate = Barrier::new(threads);
        let spans: Vec<(Tick, Tick)> = std::thread::scope(|scope| {
            let one = |thread: usize| {
                let (gate, source, target) = (&gate, &source, &target);
                let range = (thread * each).min(bytes)..((thread + 1) * each).min(bytes);
                scope.spawn(move || {
                    let pinned = match method {
                        Method::Shared => Ok(()),
                        _ => pin(&[CpuId(thread as _)]).map_err(|e| e.to_string()),
                    };
                    let list = pages(source, &range);
                    gate.wait();
                    let began = now();
                    let done = self.part(method, source, target, &range, &list);
                    let ended = now();
                    pinned.and(done).map(|()| (began, ended))
                })
            };
            let all: Vec<_> = (0..threads).map(one).collect();
            all.into_iter()
                .map(|t| t.join().map_err(|_| "a thread panicked".to_owned()).and_then(|r| r))
                .collect::<Result<_, String>>()
        })?;
        let moved = matches!(method, Method::MovePages | Method::Mbind | Method::Shared);
        self.arrived(if moved { &mut source } else { &mut target }, bytes)?;
        let (Some(began), Some(ended)) =
            (spans.iter().map(|s| s.0).min(), spans.iter().map(|s| s.1).max())
        else {
            return Err("no threads".into());
        };
        Ok(ended.since(began).get())
    }

    fn part(
        &self,
        how: Method,
        from: &AnonymousMapping,
        to: &AnonymousMapping,
        range: &Range<usize>,
        list: &[Vpn],
    ) -> Result<(), String> {
        match how {
            // What does not move is seen afterwards.
            Method::MovePages => drop(move_pages(me(), list, self.to)),
            Method::Shared => drop(Bulk::new(MoveCosts::default()).move_pages(me(), list, self.to)),
            Method::Mbind => {
                from.move_by_mbind(range.clone(), self.to).map_err(|e| e.to_string())?
            }
            Method::Copy | Method::CopyPrefaulted => {
                let at = |memory: &AnonymousMapping| memory.as_ptr().wrapping_add(range.start);
                // SAFETY: the range lies in both mappings, which are different; ranges of threads
                // share no byte.
                unsafe { copy(at(from).cast_const(), at(to), range.len()) };
                if how == Method::Copy {
                    from.release(range.clone());
                }
            }
        }
        Ok(())
    }

    fn arrived(&self, memory: &mut AnonymousMapping, bytes: usize) -> Result<(), String> {
        let there = query_pages(me(), &pages(memory, &(0..bytes))).map_err(|e| e.to_string())?;
        let missing = there.iter().filter(|s| **s != PageStatus::On(self.to)).count();
        if missing > 0 {
            return Err(format!("{missing} of {} pages are not on node {}", there.len(), self.to));
        }
        let wrong = words(memory)[..bytes / 8]
            .iter()
            .enumerate()
            .filter(|(at, word)| **word != mark(*at))
            .count();
        if wrong > 0 {
            return Err(format!("{wrong} words differ"));
        }
        Ok(())
    }

    fn row(&self, threads: usize, bytes: usize, repeat: usize) -> Result<(), String> {
        for (method, name) in METHODS.into_iter().filter(|m| threads == 1 || m.0 != Method::Shared)
        {
            let mut spans = (0..repeat.max(1))
                .map(|_| self.once(method, bytes, threads))
                .collect::<Result<Vec<_>, _>>()?;
            spans.sort_unstable();
            println!(
                "| {threads} | {} | {name} | {} | {} |",
                bytes >> 10,
                spans[0],
                spans[spans.len() / 2]
            );
        }
        Ok(())
    }
}

fn all(arguments: &[String]) -> Result<(), String> {
    let list = |name: &str| -> Result<Vec<usize>, String> {
        let of = |a: &'_ String| {
            a.strip_prefix(name).and_then(|v| v.strip_prefix('=')).map(str::to_owned)
        };
        let text = arguments.iter().find_map(of);
        let text = text.ok_or_else(|| format!("{name}= is missing; see the head of this file"))?;
        text.split(',').map(|n| n.parse().map_err(|_| format!("{n} is no number"))).collect()
    };
    let one = |name: &str| list(name).map(|l| l.first().copied().unwrap_or(0));
    let pages = if arguments.iter().any(|a| a == "pages=huge") {
        MappingPages::Huge
    } else {
        MappingPages::Base
    };
    let study = Study { from: NodeId(one("from")? as u16), to: NodeId(one("to")? as u16), pages };
    let (parallel, repeat) = (one("parallel")? << 20, one("repeat")?);
    println!("| threads | KiB | method | best ns | median ns |");
    println!("|---|---|---|---|---|");
    for kib in list("serial")? {
        study.row(1, kib << 10, repeat)?;
    }
    for threads in list("threads")? {
        study.row(threads, parallel, repeat)?;
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = all(&arguments) {
        eprintln!("migration_study: {why}");
        std::process::exit(1);
    }
}
