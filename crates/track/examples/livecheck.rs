//! Checks the live trackers and the mover against a program with a known hot set.
//!
//! usage: livecheck [tracker=page-table|soft-dirty|damon|damon-page|perf,SETTINGS|auto]
//!        [hot=MIB] [cold=MIB]
//!        [hot-pages=N] [layout=scattered|contiguous] [op=read|write] [interval=MS] [seconds=S]
//!        [share=0.8] [cold-writes=0|1] [thp=0|1] [threads=1] [costs=0|1] [move=0|1]
//!        [expect=PERCENT] [wrong=PERCENT] [beside=MS] livecheck guardian=1
//!
//! A child touches all its pages, then sends `share` of its accesses to the hot ones. The parent
//! ranks pages by what the tracker saw and says which part of the hot set is among the first as
//! many (recall equals precision there), over time, with the tracker's own CPU time. Fails when
//! less of it than `expect` is among them at the end, or when more than `wrong` of the heat is
//! reported of other pages. `beside`: so often the child maps memory beside its own anew, which
//! makes the kernel call all of it soft-dirty.
#![allow(clippy::unwrap_used)] // a check that fails may panic

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use terrace_engine::{MoveLimits, Mover, PageSamples, PageWrites, SampleRequest, Target, Tracker};
use terrace_migrate::{live_mover, MoveCosts};
use terrace_sys::{
    now, Capabilities, Category, Clear, ClearRefs, DamonOps, DamonPlan, DamonRun, DamonTarget,
    PageMap, PageTables, Root, TableEntry,
};
use terrace_track::{
    Budget, LiveTarget, LiveTrackers, PerfSettings, ProcessTree, TierNodes, TrackerChoice,
};
use terrace_types::{
    Area, Bytes, Move, MoveReason, Nanos, NodeId, PageStat, Pid, Seed, Vpn, VpnRange,
};

const PAGE: usize = 4096;

struct Options(HashMap<String, String>);

impl Options {
    fn text(&self, key: &str, or: &str) -> String {
        self.0.get(key).cloned().unwrap_or_else(|| or.to_owned())
    }

    fn number(&self, key: &str, or: f64) -> f64 {
        self.0.get(key).map_or(or, |v| v.parse().unwrap())
    }

    fn hot_pages(&self) -> usize {
        let mib = self.number("hot", 16.0) * 256.0;
        self.number("hot-pages", mib) as usize
    }

    fn all_pages(&self) -> usize {
        self.hot_pages() + (self.number("cold", 48.0) * 256.0) as usize
    }

    /// Which pages are hot, the same in parent and child.
    fn hot(&self) -> Vec<u32> {
        let (hot, all) = (self.hot_pages(), self.all_pages());
        let mut pages: Vec<u32> = (0..all as u32).collect();
        if self.text("layout", "scattered") == "contiguous" {
            return pages[all / 3..all / 3 + hot].to_vec();
        }
        let mut seed = Seed(7);
        for at in 0..hot {
            let (value, next) = seed.next();
            seed = next;
            pages.swap(at, at + (value % (all - at) as u64) as usize);
        }
        pages[..hot].to_vec()
    }
}

fn main() {
    let options = Options(
        std::env::args()
            .skip(1)
            .filter_map(|a| a.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
            .collect(),
    );
    if options.text("role", "parent") == "child" {
        child(&options);
    }
    if options.text("role", "parent") == "tool" {
        tool();
    }
    if options.number("guardian", 0.0) > 0.0 {
        return guardian();
    }
    parent(&options);
}

/// Starts a kdamond on its own parent, says so, and waits to be killed.
fn tool() -> ! {
    let plan = DamonPlan {
        ops: DamonOps::Vaddr,
        targets: vec![DamonTarget {
            pid: Pid(std::os::unix::process::parent_id() as i32),
            regions: vec![],
        }],
        sample: Nanos::millis(5),
        aggregate: Nanos::millis(100),
        update: Nanos::secs(1),
        min_regions: 10,
        max_regions: 100,
        accessed_only: false,
        ring_pages: 8,
    };
    let run = DamonRun::start(&Root::live(), &plan).unwrap();
    println!("{}", run.kdamond());
    std::io::stdout().flush().unwrap();
    terrace_sys::sleep(Nanos::secs(60));
    drop(run);
    std::process::exit(0)
}

/// Kills a tool with -9 while its kdamond runs: is it turned off?
fn guardian() {
    let mut tool = std::process::Command::new("/proc/self/exe")
        .arg("role=tool")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(tool.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let count = || Root::live().number("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds").unwrap();
    println!("kdamond {} runs, nr_kdamonds {}", line.trim(), count());
    tool.kill().unwrap();
    tool.wait().unwrap();
    let start = now();
    while count() != 0 && now().since(start) < Nanos::secs(5) {
        terrace_sys::sleep(Nanos::millis(1));
    }
    println!("{} after kill -9: nr_kdamonds {}", now().since(start), count());
    assert_eq!(count(), 0);
}

/// Never returns: killed by the parent, or ends when its output has no reader.
fn child(options: &Options) -> ! {
    let hot = options.hot();
    let all = options.all_pages() as u64;
    let share = (options.number("share", 0.8) * 65536.0) as u64;
    let write = options.text("op", "read") == "write";
    let cold_too = options.number("cold-writes", 0.0) > 0.0;
    if options.number("thp", 0.0) == 0.0 {
        // SAFETY: this option of prctl takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }
    let memory: Vec<AtomicU8> = (0..(all as usize + 1) * PAGE).map(|_| AtomicU8::new(0)).collect();
    let base = memory.as_ptr() as usize;
    let first = base.div_ceil(PAGE) * PAGE - base;
    for page in 0..all as usize {
        memory[first + page * PAGE].store(1, Relaxed);
    }
    println!("{}", (base + first) / PAGE);
    std::io::stdout().flush().unwrap();
    let beside = options.number("beside", 0.0);
    let (mut besides, mut last) = (0, now());
    let mut map_beside = move || {
        if beside > 0.0 && now().since(last) >= Nanos((beside * 1e6) as u64) {
            last = now();
            let (len, rights, kind) = (
                1 << 20,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            // SAFETY: what is unmapped, if anything, is what the last call mapped here, which
            // nobody uses; what is mapped is new.
            besides = unsafe {
                if besides != 0 {
                    libc::munmap(besides as *mut libc::c_void, len);
                }
                libc::mmap(std::ptr::null_mut(), len, rights, kind, -1, 0) as usize
            };
        }
    };
    let accesses = |number: u64, between: &mut dyn FnMut()| -> ! {
        let mut seed = Seed(3 + number);
        let mut sum = 0_u64;
        let mut count = 0_u64;
        loop {
            for _ in 0..100_000 {
                let (r, next) = seed.next();
                seed = next;
                let to_hot = (r & 0xffff) < share;
                let page = if to_hot {
                    u64::from(hot[((r >> 16) % hot.len() as u64) as usize])
                } else {
                    (r >> 16) % all
                };
                let at = &memory[first + page as usize * PAGE + ((r >> 44) as usize & (PAGE - 1))];
                if write && (to_hot || cold_too) {
                    at.store(at.load(Relaxed).wrapping_add(1), Relaxed);
                } else {
                    sum = sum.wrapping_add(u64::from(std::hint::black_box(at.load(Relaxed))));
                }
            }
            count += 100_000;
            between();
            if count % 1_000_000 == 0 && number == 0 {
                println!("{count}");
                if std::io::stdout().flush().is_err() {
                    std::process::exit((sum & 1) as i32);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 1..options.number("threads", 1.0) as u64 {
            let accesses = &accesses;
            scope.spawn(move || accesses(number, &mut || {}));
        }
        accesses(0, &mut map_beside)
    })
}

fn choice(name: &str) -> TrackerChoice {
    match name {
        "page-table" => TrackerChoice::PageTable,
        "soft-dirty" => TrackerChoice::SoftDirty,
        "damon" => TrackerChoice::Damon,
        "damon-page" => TrackerChoice::DamonPage,
        perf if perf.starts_with("perf") => TrackerChoice::Perf(
            PerfSettings::parse(perf.trim_start_matches("perf").trim_start_matches(',')).unwrap(),
        ),
        _ => TrackerChoice::Auto,
    }
}

fn parent(options: &Options) {
    let root = Root::live();
    let start = now();
    let able = Capabilities::probe(&root);
    println!("  probing took {}", now().since(start));
    for item in able.all().into_iter().filter(|c| !c.usable) {
        println!("  cannot {}: {}", item.name, item.why_not);
    }
    let mut child = std::process::Command::new("/proc/self/exe")
        .args(std::env::args().skip(1))
        .arg("role=child")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let base: u64 = lines.next().unwrap().unwrap().parse().unwrap();
    let pid = Pid(child.id() as i32);
    let rate = std::thread::spawn(move || {
        let start = now();
        let mut last = 0_u64;
        for line in lines.map_while(Result::ok) {
            last = line.parse().unwrap_or(last);
        }
        last as f64 / now().since(start).as_secs_f64()
    });
    let nodes = able.nodes.clone();
    let tiers = nodes.iter().map(|n| TierNodes { nodes: vec![*n] }).collect();
    let mut target =
        LiveTarget::new(root.clone(), ProcessTree::new(root.clone(), pid), tiers).unwrap();
    if options.number("costs", 1.0) > 0.0 {
        costs(&root, pid, VpnRange::new(Vpn(base), Vpn(base + options.all_pages() as u64)));
    }
    let (found, wrong) = watch(options, &root, &able, &mut target, base).unwrap_or_else(|e| {
        println!("  tracker: {e}");
        (0.0, 100.0)
    });
    if options.number("move", 0.0) > 0.0 {
        moving(options, &mut target, pid, base, &nodes);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    println!("  child made {:.1} M accesses/s", rate.join().unwrap() / 1e6);
    let expected = options.number("expect", 0.0);
    if found < expected {
        eprintln!("found {found:.1}% of the hot pages, not {expected}%");
        std::process::exit(1);
    }
    let most = options.number("wrong", 100.0);
    if wrong > most {
        eprintln!(
            "{wrong:.1}% of the heat is reported of pages that are not hot, not at most {most}%"
        );
        std::process::exit(1);
    }
}

/// What single operations on the child take, by the clock on the wall.
fn costs(root: &Root, pid: Pid, range: VpnRange) {
    let timed = |what: &str, run: &mut dyn FnMut() -> String| {
        let (start, cpu) = (now(), terrace_sys::own_cpu());
        let said = run();
        println!(
            "  {what}: {} ({} of CPU) {said}",
            now().since(start),
            terrace_sys::own_cpu().saturating_sub(cpu)
        );
    };
    let pagemap = PageMap::open(root, pid).unwrap();
    let mut entries = Vec::new();
    timed("pagemap pread", &mut || {
        pagemap.read(range, &mut entries).unwrap();
        let own = entries.iter().filter(|e| e.present() && e.exclusive() && !e.file()).count();
        format!("{own} own pages of {}", range.len())
    });
    timed("pagemap scan", &mut || {
        let mut runs = 0;
        let soft = Category::SOFT_DIRTY;
        let scanned = pagemap.scan(range, soft, soft, |_, _| runs += 1);
        format!("{scanned:?} {runs} runs")
    });
    let clear = ClearRefs::open(root, pid).unwrap();
    timed("clear_refs 1", &mut || format!("{:?}", clear.clear(Clear::Accessed)));
    timed("clear_refs 4", &mut || format!("{:?}", clear.clear(Clear::SoftDirty)));
    match PageTables::open(root) {
        Ok(mut tables) => {
            timed("find tables", &mut || format!("{:?}", tables.resolve(pid, &pagemap, &[range])));
            for _ in 0..6 {
                terrace_sys::sleep(Nanos::millis(1));
                timed("clear_refs 1 again", &mut || format!("{:?}", clear.clear(Clear::Accessed)));
                terrace_sys::sleep(Nanos::millis(1));
                timed("walk tables", &mut || {
                    let (mut present, mut accessed, mut huge) = (0, 0, 0);
                    tables.walk(pid, &[range], |_, _, words, span| {
                        huge += u64::from(span.is_some());
                        let span = span.unwrap_or(1);
                        for entry in words.iter().map(|w| TableEntry(*w)).filter(|e| e.present()) {
                            present += span;
                            accessed += span * u64::from(entry.accessed());
                        }
                    });
                    format!("{present} present, {accessed} accessed, {huge} huge pages")
                });
            }
        }
        Err(e) => println!("  {e}"),
    }
    println!("  own CPU so far: {}", terrace_sys::own_cpu());
}

fn watch(
    options: &Options,
    root: &Root,
    able: &Capabilities,
    target: &mut LiveTarget,
    base: u64,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let name = options.text("tracker", "auto");
    let mut trackers =
        LiveTrackers::new(root, able, choice(&name), Budget::new(4.0, Nanos::secs(60)))?;
    let hot = options.hot();
    let all = options.all_pages();
    println!(
        "{name}: {} hot of {all} pages, {}, {}; {:?} {:?}",
        hot.len(),
        options.text("layout", "scattered"),
        options.text("op", "read"),
        trackers.names(),
        trackers.notes()
    );
    let interval = Nanos::millis(options.number("interval", 50.0) as u64);
    let ask = SampleRequest {
        interval,
        fine: vec![],
        reads: true,
        writes: true,
        relaxed: false,
        quick_scan: false,
    };
    let mut weight = vec![(0_f64, 0_f64); all];
    let start = now();
    let mut memory = Bytes::ZERO;
    let (mut percent, mut wrong) = (0.0, 0.0);
    for round in 1.. {
        target.refresh()?;
        trackers.begin(target.mappings(), &ask)?;
        terrace_sys::sleep(interval);
        let seen = trackers.finish(now())?;
        memory = memory.max(seen.memory);
        let mine = VpnRange::new(Vpn(base), Vpn(base + all as u64));
        let counted = seen.observations.iter().map(|s| {
            (s.range, f64::from(s.hits), f64::from(s.sample_count) * s.interval.as_secs_f64())
        });
        let reported = seen.writes.iter().flat_map(PageWrites::runs).map(|(range, reported)| {
            let over = reported.over.as_secs_f64();
            (range, f64::from(reported.per_second) * over, over)
        });
        for (range, events, time) in counted.chain(reported) {
            let Some(part) = range.intersect(mine) else {
                continue;
            };
            for page in part.start.0..part.end.0 {
                let w = &mut weight[(page - base) as usize];
                w.0 += events;
                w.1 += time;
            }
        }
        for samples in &seen.samples {
            let Some(part) = samples.range().intersect(mine) else {
                continue;
            };
            let hits =
                &samples.hits[(part.start.0 - samples.start.0) as usize..][..part.len() as usize];
            let pages = (part.start.0 - base) as usize..(part.end.0 - base) as usize;
            let known = weight[pages]
                .iter_mut()
                .zip(hits)
                .filter(|(_, hits)| **hits != PageSamples::NOT_SAMPLED);
            for (w, hits) in known {
                w.0 += f64::from(*hits);
                w.1 += f64::from(samples.sample_count) * samples.interval.as_secs_f64();
            }
        }
        let mut order: Vec<u32> = (0..all as u32).collect();
        let heat = |p: u32| weight[p as usize].0 / weight[p as usize].1.max(1e-9);
        order.sort_by(|a, b| heat(*b).total_cmp(&heat(*a)).then(a.cmp(b)));
        let first: std::collections::HashSet<u32> = order[..hot.len()].iter().copied().collect();
        let found = hot.iter().filter(|p| first.contains(p)).count();
        let sum = |pages: &mut dyn Iterator<Item = u32>| pages.map(heat).sum::<f64>();
        let (of_hot, of_all) = (sum(&mut hot.iter().copied()), sum(&mut (0..all as u32)));
        wrong = 100.0 * (of_all - of_hot) / of_all.max(1e-9);
        percent = 100.0 * found as f64 / hot.len() as f64;
        let took = now().since(start);
        let sampled = seen
            .observations
            .iter()
            .max_by_key(|s| s.range.len())
            .map(|s| (s.interval, s.sample_count));
        let example =
            seen.samples.first().map(|l| (l.interval, u16::from(l.sample_count))).or(sampled);
        println!(
            "  {round:3} {:6.0} ms: found {:5.1}%  cpu {:6.1} ms ({:4.1}% of a core) of which \
                this {:5.1} ms, lost {}, {} observations, sample {:?} x {:?}",
            took.as_secs_f64() * 1e3,
            percent,
            trackers.spent().as_secs_f64() * 1e3,
            100.0 * trackers.spent().as_secs_f64() / took.as_secs_f64(),
            seen.cpu.as_secs_f64() * 1e3,
            seen.lost,
            seen.observations.len() + seen.samples.len() + seen.writes.len(),
            example.map(|e| e.0.to_string()),
            example.map(|e| e.1),
        );
        if took > Nanos((options.number("seconds", 1.0) * 1e9) as u64) {
            break;
        }
    }
    println!("  memory {memory}, {wrong:.1}% of the heat reported of other pages");
    Ok((percent, wrong))
}

/// Locates the hot pages, moves them all to the last node and back, and says what it took.
fn moving(options: &Options, target: &mut LiveTarget, pid: Pid, base: u64, nodes: &[NodeId]) {
    target.refresh().unwrap();
    let mut areas =
        [Area { pid, start: Vpn(base), pages: vec![PageStat::default(); options.all_pages()] }];
    let cpu = terrace_sys::own_cpu();
    target.locate(&mut areas).unwrap();
    let cpu = terrace_sys::own_cpu() - cpu;
    println!("  locate {} pages: {cpu} of CPU", areas[0].pages.len());
    for tier in target.tiers().unwrap() {
        println!("  tier {:?}: {} free of {}", tier.nodes, tier.free, tier.capacity);
    }
    let limits = MoveLimits {
        longest_call: Nanos::millis(20),
        rate: None,
        batch: 512,
        total: Nanos::secs(20),
    };
    let mut hot = options.hot();
    hot.sort_unstable();
    let mut mover = live_mover(MoveCosts::default());
    let last = nodes[nodes.len() - 1];
    for to in [last, nodes[0], last, nodes[0]] {
        let moves: Vec<Move> = hot
            .iter()
            .map(|p| Move {
                pid,
                start: Vpn(base + u64::from(*p)),
                pages: 1,
                from: areas[0].pages[*p as usize].node(),
                to,
                reason: MoveReason::Hot,
            })
            .collect();
        let start = now();
        let done = mover.apply(&moves, false, &limits);
        println!(
            "  to node {to}: moved {:?}, not {:?}, {} calls, longest {}, in calls {}, wall {}",
            done.moved,
            done.failed,
            done.calls,
            done.longest_call,
            done.cost,
            now().since(start)
        );
    }
}
