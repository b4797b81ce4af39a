//! The code made so far: found by the program's addresses, linked, and dropped where the program
//! changes its code.

use crate::context::Context;
use crate::glue;
use crate::lock::Lock;
use crate::make::Maker;
use crate::plan::{Kind, Plan};
use crate::ring::{head, message};
use crate::sys;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use iced_x86::InstructionInfoFactory;

/// Below the translator itself (`build.rs`), near enough for its jumps, and within the range that
/// ThreadSanitizer leaves to libraries and stacks.
pub const BASE: u64 = 0x7e90_1000_0000;
pub const BYTES: u64 = 512 << 20;
/// A block's code is never longer.
const LONGEST: u64 = 64 << 10;
const NOBODY: u32 = u32::MAX;

/// Code for some of the program's.
pub struct Block {
    pub pc: u64,
    /// Where the code made begins, and where it is entered.
    pub begin: u64,
    entry: u64,
    pub number: u32,
    kind: Kind,
    valid: bool,
    /// Words written before the block's own.
    border: u8,
}

/// Why code can be found nowhere.
#[derive(Debug, Clone, Copy)]
pub struct Full;

struct State {
    /// A hash table of block indices, a power of two long.
    table: Vec<u32>,
    blocks: Vec<Block>,
    /// By page of the program: blocks with code there.
    pages: BTreeMap<u64, Vec<u32>>,
    next: u64,
    plan: Plan,
    maker: Maker,
    factory: InstructionInfoFactory,
    /// Where functions begin at which recording begins and ends; 0 for none.
    borders: [u64; 2],
    /// Memory that the program can both write and execute, from and to: its code may change and
    /// nobody is notified.
    writable: Vec<(u64, u64)>,
}

/// The process's only one.
pub struct Cache {
    lock: Lock,
    state: UnsafeCell<Option<State>>,
    /// Blocks are numbered here where there is no recorder.
    unrecorded: AtomicU64,
}

// SAFETY: `state` is touched under `lock` only.
unsafe impl Sync for Cache {}

pub static CACHE: Cache =
    Cache { lock: Lock::new(), state: UnsafeCell::new(None), unrecorded: AtomicU64::new(0) };

impl Cache {
    /// Takes the memory. `borders`: where functions begin at which recording begins and ends.
    pub fn open(&self, borders: [u64; 2]) -> Result<(), &'static str> {
        let flags = sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
        if sys::map(BASE, BYTES, 7, flags) != Some(BASE) {
            return Err("the place of the code cache is taken");
        }
        let _held = self.lock.hold();
        // SAFETY: the lock is held.
        let state = unsafe { &mut *self.state.get() };
        *state = Some(State {
            table: alloc::vec![NOBODY; 1 << 14],
            blocks: Vec::new(),
            pages: BTreeMap::new(),
            next: BASE,
            plan: Plan::default(),
            maker: Maker::new(),
            factory: InstructionInfoFactory::new(),
            borders,
            writable: Vec::new(),
        });
        Ok(())
    }

    /// Does something with the state alone.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let _held = self.lock.hold();
        // SAFETY: the lock is held; nothing runs before `open`.
        let state = unsafe { (*self.state.get()).as_mut() };
        let Some(state) = state else { crate::give_up("the code cache is not open") };
        work(state)
    }

    /// Nobody translates while a process forks, so that the child's copy is whole.
    pub fn fork<T>(&self, work: impl FnOnce() -> T) -> T {
        self.with(|_| crate::memory::MEMORY.quiet(work))
    }

    /// Where the code for `pc` is entered; made now if it is not there.
    pub fn find(&self, context: &mut Context, pc: u64) -> Result<u64, Full> {
        self.with(|state| {
            let index = state.block(pc, context, self)?;
            Ok(state.blocks[index as usize].entry)
        })
    }

    /// Makes the jump at `site` go to `entry` directly. Others may execute it meanwhile: it lies
    /// within one line.
    pub fn link(&self, site: u64, entry: u64) {
        if site != 0 {
            self.with(|_| {
                // SAFETY: `site` is the distance of a jump of the cache, told by its link.
                unsafe {
                    core::ptr::write_volatile(site as *mut i32, entry.wrapping_sub(site + 4) as i32)
                };
            });
        }
    }

    /// What is known of the block at `pc`: its number, its kind, words written before it.
    pub fn about(&self, pc: u64) -> Option<(u32, Kind, u8)> {
        self.with(|state| {
            let index = state.look_up(pc)?;
            let block = &state.blocks[index as usize];
            Some((block.number, block.kind, block.border))
        })
    }

    /// The program's code in this range is other code from now on, or none. `protection`: what may
    /// be done there, 0 where nothing is mapped any more.
    pub fn forget(&self, start: u64, bytes: u64, protection: u64) {
        self.with(|state| {
            let end = start.saturating_add(bytes).div_ceil(4096).saturating_mul(4096);
            state.forget(start, end);
            let old = core::mem::take(&mut state.writable);
            let rest = old.into_iter().flat_map(|(a, b)| [(a, b.min(start)), (a.max(end), b)]);
            state.writable = rest.filter(|(a, b)| a < b).collect();
            if protection & 6 == 6 {
                state.writable.push((start, end));
            }
        });
    }

    /// Which block the code at this address belongs to, and the places in it; made again to know.
    pub fn places(&self, code: u64) -> Option<(u64, u64, Vec<crate::make::Place>)> {
        self.with(|state| {
            let index = state.blocks.partition_point(|b| b.begin <= code).checked_sub(1)?;
            let (pc, begin) = (state.blocks[index].pc, state.blocks[index].begin);
            let (number, border) = (state.blocks[index].number, state.blocks[index].border);
            let kind = state.plan.read(pc, state.borders, &mut state.factory);
            let words = border_words(border);
            state.maker.make(&state.plan, kind, number, begin, words, &mut state.factory).ok()?;
            Some((pc, begin, state.maker.places.clone()))
        })
    }
}

/// Words told where a function begins at which recording begins (1) or ends (2).
pub fn border_words(which: u8) -> &'static [u64] {
    const BOTH: [u64; 2] = [head(message::BEGIN, 0), head(message::END, 0)];
    match which {
        1 => &BOTH[..1],
        2 => &BOTH[1..],
        3 => &BOTH,
        _ => &[],
    }
}

fn hash(pc: u64) -> usize {
    (pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

impl State {
    fn look_up(&self, pc: u64) -> Option<u32> {
        let mask = self.table.len() - 1;
        let mut at = hash(pc) & mask;
        loop {
            let index = self.table[at];
            if index == NOBODY {
                return None;
            }
            let block = &self.blocks[index as usize];
            if block.pc == pc && block.valid {
                return Some(index);
            }
            at = (at + 1) & mask;
        }
    }

    fn insert(&mut self, index: u32) {
        if self.blocks.len() * 2 > self.table.len() {
            self.table = alloc::vec![NOBODY; self.table.len() * 2];
            (0..index).for_each(|i| self.place(i));
        }
        self.place(index);
    }

    fn place(&mut self, index: u32) {
        if !self.blocks[index as usize].valid {
            return;
        }
        let mask = self.table.len() - 1;
        let mut at = hash(self.blocks[index as usize].pc) & mask;
        while self.table[at] != NOBODY {
            at = (at + 1) & mask;
        }
        self.table[at] = index;
    }

    fn block(&mut self, pc: u64, context: &mut Context, cache: &Cache) -> Result<u32, Full> {
        if let Some(index) = self.look_up(pc) {
            return Ok(index);
        }
        if self.next + LONGEST > BASE + BYTES {
            return Err(Full);
        }
        let mut kind = self.plan.read(pc, self.borders, &mut self.factory);
        if self.writable.iter().any(|(a, b)| *a < self.plan.end() && pc < *b) {
            kind = Kind::Not(
                "it lies in memory that the program can write, so that it may change unnoticed",
            );
        }
        let border = u8::from(pc == self.borders[0]) | u8::from(pc == self.borders[1]) << 1;
        let number = match crate::area() {
            Some(area) => area.control().blocks.fetch_add(1, Ordering::Relaxed) + 1,
            None => cache.unrecorded.fetch_add(1, Ordering::Relaxed) as u32 + 1,
        };
        let base = self.next;
        let words = border_words(border);
        let made = self.maker.make(&self.plan, kind, number, base, words, &mut self.factory);
        let (entry, links) = match made {
            Ok((entry, links)) => (entry, links.to_vec()),
            Err(why) => {
                kind = Kind::Not(why);
                let made = self.maker.make(&self.plan, kind, number, base, &[], &mut self.factory);
                (made.map_or(base, |m| m.0), Vec::new())
            }
        };
        let code = &self.maker.code.bytes;
        // SAFETY: the cache has space for it, and nobody executes it yet.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), base as *mut u8, code.len()) };
        self.next = base + code.len() as u64;
        let index = self.blocks.len() as u32;
        let end = self.plan.end();
        self.blocks.push(Block { pc, begin: base, entry, number, kind, valid: true, border });
        self.insert(index);
        for page in pc >> 12..=(end.max(pc + 1) - 1) >> 12 {
            self.pages.entry(page).or_default().push(index);
        }
        // Jumps to what is there already need not come by the runtime.
        for (site, to) in links {
            if let Some(there) = self.look_up(to) {
                let entry = self.blocks[there as usize].entry;
                // SAFETY: a distance in the code made just now.
                unsafe {
                    core::ptr::write_volatile(site as *mut i32, entry.wrapping_sub(site + 4) as i32)
                };
            }
        }
        if matches!(kind, Kind::Plain | Kind::Repeated | Kind::Slow) && context.recorded() {
            let bytes = &self.plan.bytes[..(end - pc) as usize];
            let numbers = [u64::from(number), pc, self.plan.steps.len() as u64, bytes.len() as u64];
            context.message(message::BLOCK, &numbers, bytes);
            context.write_out();
        }
        Ok(index)
    }

    fn forget(&mut self, start: u64, end: u64) {
        let pages = start >> 12..end.div_ceil(4096);
        let gone: Vec<u64> = self.pages.range(pages).map(|(page, _)| *page).collect();
        for page in gone {
            let Some(indices) = self.pages.remove(&page) else { continue };
            for index in indices {
                self.invalidate(index);
            }
        }
    }

    /// Whoever comes to the block's entry is sent to the runtime, which finds or makes another.
    fn invalidate(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        if !core::mem::replace(&mut block.valid, false) || self.next + LONGEST > BASE + BYTES {
            return;
        }
        let (pc, entry, stub) = (block.pc, block.entry, self.next);
        let code = &mut self.maker.code;
        code.bytes.clear();
        code.base = stub;
        code.point_at(stub + 12);
        code.jump(None, glue::terrace_exit_link as *const () as u64);
        code.put(&pc.to_le_bytes());
        code.put(&[0; 8]);
        code.align(16);
        self.next = stub + code.bytes.len() as u64;
        // SAFETY: the stub lies behind all code; an entry is aligned and begins with an instruction
        // of eight bytes or more, whose first eight are changed at once.
        unsafe {
            core::ptr::copy_nonoverlapping(code.bytes.as_ptr(), stub as *mut u8, code.bytes.len());
            let old = *(entry as *const u64);
            let distance = u64::from(stub.wrapping_sub(entry + 5) as u32);
            let new = old >> 40 << 40 | distance << 8 | 0xe9;
            core::ptr::write_volatile(entry as *mut u64, new);
        }
    }
}
