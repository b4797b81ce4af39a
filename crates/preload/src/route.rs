//! From a plan to arenas, and from an allocation to one of them.

use crate::far::{self, DUE};
use crate::reserve::Line;
use crate::site::Sites;
use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicU8, Ordering::*};
use terrace_alloc::arena::plan::{AllocationCondition, ArenaPlan, Segments, PLAN_LIMIT};
use terrace_alloc::arena::{Arena, ArenaSpec, Devices};

/// A plan under way.
struct Routes {
    default: Arena,
    /// Where what no rule speaks of goes.
    rest: Arena,
    rules: Vec<(AllocationCondition, Arena)>,
    sites: Option<Sites>,
    segments: Vec<(Segments, Devices)>,
}

const COLD: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
/// There are no addresses for arenas.
const FAILED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(COLD);
static ROUTES: AtomicPtr<Routes> = AtomicPtr::new(null_mut());
/// As [`ROUTES`], where the plan has no rules.
static PLAIN: AtomicPtr<Routes> = AtomicPtr::new(null_mut());
static THREADS: AtomicU64 = AtomicU64::new(0);

/// A thread's name is asked for again after so many allocations: threads are named after they
/// begin.
const NAME_FOR: u32 = 256;

thread_local! {
    static LOOKING: Cell<bool> = const { Cell::new(false) };
    static NUMBER: Cell<u64> = const { Cell::new(u64::MAX) };
    static NAME: Cell<([u8; 16], u32)> = const { Cell::new(([0; 16], 0)) };
}

/// The arena for an allocation, and the one for the case that it has no free space. `None`: not
/// now.
#[inline(always)]
pub(crate) fn choose(size: usize) -> Option<(Arena, Arena)> {
    let routes = ROUTES.load(Acquire);
    if routes.is_null() {
        return begin(size);
    }
    if DUE.load(Relaxed) && !far::go_on() {
        return None;
    }
    // SAFETY: set once, never freed.
    let routes = unsafe { &*routes };
    if routes.rules.is_empty() {
        return Some((routes.rest, routes.default));
    }
    Some((routes.find(size), routes.default))
}

/// Whether there are no arenas, now and later.
#[cold]
pub(crate) fn has_failed() -> bool {
    STATE.load(Acquire) == FAILED
}

/// A block from the arena of all allocations, where there are no rules and it has one at hand.
#[inline(always)]
pub(crate) fn at_once(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: set once, never freed.
    let routes = unsafe { PLAIN.load(Acquire).as_ref() }?;
    if DUE.load(Relaxed) {
        return None;
    }
    routes.rest.alloc_cached(size)
}

/// Where shared memory of that name (without the slash) shall come from; `None`: the plan says
/// nothing.
pub(crate) fn of_segment(name: &[u8]) -> Option<&'static Devices> {
    // Any allocation has the plan read.
    let _read = choose(1)?;
    // SAFETY: set once before `choose` gave anything, never freed.
    let routes = unsafe { ROUTES.load(Acquire).as_ref() }?;
    let matches =
        |s: &Segments| name == s.name.as_bytes() || (s.open && name.starts_with(s.name.as_bytes()));
    routes.segments.iter().find(|(s, _)| matches(s)).map(|(_, devices)| devices)
}

/// Reads the plan, the first time. Whoever comes meanwhile, this thread's own calls too, is served
/// otherwise.
#[cold]
#[inline(never)]
fn begin(size: usize) -> Option<(Arena, Arena)> {
    if STATE.compare_exchange(COLD, STARTING, AcqRel, Acquire).is_err() {
        return None;
    }
    far::begin();
    let default = match Arena::create(&ArenaSpec { name: "default".into(), ..ArenaSpec::default() })
    {
        Ok(default) => default,
        Err(why) => {
            // Who named no plan loses nothing.
            // SAFETY: the name ends with zero; nobody changes the environment meanwhile.
            if unsafe { !libc::getenv(c"TERRACE_ALLOC".as_ptr()).is_null() } {
                let mut line = Line::new();
                let _cut_if_too_long =
                    writeln!(line, "terrace: no arenas: {why}; the program runs without them");
                line.to_stderr();
            }
            STATE.store(FAILED, Release);
            return None;
        }
    };
    let mut routes =
        Routes { default, rest: default, rules: Vec::new(), sites: None, segments: Vec::new() };
    // SAFETY: the name ends with zero; nobody changes the environment while the program starts.
    let path = unsafe { libc::getenv(c"TERRACE_ALLOC".as_ptr()) };
    if !path.is_null() {
        // SAFETY: the environment's strings end with zero.
        let path = unsafe { CStr::from_ptr(path) };
        if let Err(why) = routes.follow(path) {
            let mut line = Line::new();
            let path = path.to_string_lossy();
            let _cut_if_too_long =
                writeln!(line, "terrace: plan {path}: {why}; the program runs without it");
            line.to_stderr();
        }
    }
    report_at_exit();
    let plain = routes.rules.is_empty();
    let routes = Box::into_raw(Box::new(routes));
    ROUTES.store(routes, Release);
    if plain {
        PLAIN.store(routes, Release);
    }
    STATE.store(READY, Release);
    choose(size)
}

/// Has one line an arena appended to the file that `TERRACE_ALLOC_REPORT` names, when the program
/// exits.
fn report_at_exit() {
    extern "C" fn report() {
        use std::io::Write as _;
        // SAFETY: the name ends with zero; exit handlers run alone.
        let path = unsafe { libc::getenv(c"TERRACE_ALLOC_REPORT".as_ptr()) };
        if path.is_null() {
            return;
        }
        // SAFETY: the environment's strings end with zero.
        let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
        let mut text = String::new();
        for arena in terrace_alloc::arena::list() {
            if let (Some(name), Ok(s)) = (arena.name(), arena.stats()) {
                let _infallible = writeln!(
                    text,
                    "{} {name} peak_bytes {} held_bytes {} blocks {}",
                    std::process::id(),
                    s.peak.get(),
                    s.reserved.get(),
                    s.blocks
                );
            }
        }
        // The program's own exit is not to fail for this.
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let _unreported = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    }
    // SAFETY: as above.
    if unsafe { !libc::getenv(c"TERRACE_ALLOC_REPORT".as_ptr()).is_null() } {
        // SAFETY: the handler lives as long as the program: this library is never unloaded.
        let _unreported = unsafe { libc::atexit(report) };
    }
}

impl Routes {
    fn follow(&mut self, path: &CStr) -> Result<(), String> {
        use std::io::Read as _;
        let file = std::fs::File::open(OsStr::from_bytes(path.to_bytes())).map_err(words)?;
        let mut bytes = Vec::new();
        file.take(PLAN_LIMIT as u64 + 1).read_to_end(&mut bytes).map_err(words)?;
        let plan = ArenaPlan::parse(&bytes).map_err(|e| e.to_string())?;
        let mut arenas = Vec::new();
        for planned in &plan.arenas {
            let spec = ArenaSpec {
                name: planned.name.clone(),
                limit: planned.limit,
                devices: planned.devices.clone(),
                huge_pages: planned.huge_pages,
                ..ArenaSpec::default()
            };
            arenas.push(Arena::create(&spec).map_err(|e| format!("arena {}: {e}", planned.name))?);
        }
        self.sites = plan.has_sites().then(|| Sites::new(&plan.rules));
        let devices = |s: &Segments| plan.arenas[s.arena].devices.clone();
        self.segments = plan.segments.iter().map(|s| (s.clone(), devices(s))).collect();
        self.rest = plan.default.map_or(self.default, |at| arenas[at]);
        self.rules = plan.rules.into_iter().map(|rule| (rule.when, arenas[rule.arena])).collect();
        Ok(())
    }

    fn find(&self, size: usize) -> Arena {
        let mut called_from = None;
        for (at, (when, arena)) in self.rules.iter().enumerate() {
            let matches = match when {
                AllocationCondition::Size(from, to) => (*from..*to).contains(&(size as u64)),
                AllocationCondition::ThreadNumber(number) => *number == thread_number(),
                AllocationCondition::ThreadName { name, open } => {
                    let own = thread_name();
                    let own = &own[..own.iter().position(|b| *b == 0).unwrap_or(own.len())];
                    if *open {
                        own.starts_with(name.as_bytes())
                    } else {
                        own == name.as_bytes()
                    }
                }
                AllocationCondition::Site { .. } => match &self.sites {
                    Some(sites) => {
                        *called_from.get_or_insert_with(|| outside(|| sites.rule())) == Some(at)
                    }
                    None => false,
                },
            };
            if matches {
                return *arena;
            }
        }
        self.rest
    }
}

/// An error in words that are this library's own: the C library's take a lock that the caller may
/// hold.
#[allow(clippy::needless_pass_by_value, reason = "what `map_err` passes")]
fn words(error: std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => format!("{} (errno {errno})", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Looking a site up may itself allocate: what it allocates matches no site.
fn outside(look: impl FnOnce() -> Option<usize>) -> Option<usize> {
    LOOKING.with(|looking| {
        if looking.replace(true) {
            return None;
        }
        let found = look();
        looking.set(false);
        found
    })
}

fn thread_number() -> u64 {
    NUMBER.with(|n| {
        if n.get() == u64::MAX {
            n.set(THREADS.fetch_add(1, Relaxed));
        }
        n.get()
    })
}

fn thread_name() -> [u8; 16] {
    NAME.with(|n| {
        let (name, left) = n.get();
        if left > 0 {
            n.set((name, left - 1));
            return name;
        }
        let name = terrace_sys::thread_name();
        n.set((name, NAME_FOR));
        name
    })
}
