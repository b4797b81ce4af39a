//! What `mallinfo(3)` and its kin tell: of all arenas together, and of glibc's own heap, which has
//! what was allocated before this library was there and what found no free space in arenas.

use crate::reserve::Line;
use libc::{c_char, c_int, c_void, size_t};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use terrace_alloc::arena;

/// A function of glibc's behind this library's of the same name.
struct LibcFunction(AtomicPtr<c_void>, &'static std::ffi::CStr);

impl LibcFunction {
    const fn new(name: &'static std::ffi::CStr) -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), name)
    }

    fn find(&self) -> *mut c_void {
        let mut found = self.0.load(Acquire);
        if found.is_null() {
            // SAFETY: the name ends with zero; what comes behind this library is asked for.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) };
            self.0.store(found, Release);
        }
        found
    }
}

static MALLINFO2: LibcFunction = LibcFunction::new(c"mallinfo2");
static MALLOC_TRIM: LibcFunction = LibcFunction::new(c"malloc_trim");
static USABLE_SIZE: LibcFunction = LibcFunction::new(c"malloc_usable_size");

/// Bytes of a block of glibc's.
///
/// # Safety
/// It is one.
pub(crate) unsafe fn glibc_usable_size(block: *mut c_void) -> size_t {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> size_t;
    // SAFETY: null is `None`, and the one symbol of this name has this type; the block is the
    // caller's promise.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, Option<UsableSize>>(USABLE_SIZE.find());
        real.map_or(0, |real| real(block))
    }
}

/// `struct mallinfo2`, in its order: bytes taken from the kernel but for large blocks, free blocks,
/// free blocks of the smallest kind, large blocks, their bytes, unused, bytes free of the smallest
/// kind, bytes in use, bytes free, bytes that `malloc_trim` would give back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MallocFigures {
    arena: size_t,
    ordblks: size_t,
    smblks: size_t,
    hblks: size_t,
    hblkhd: size_t,
    usmblks: size_t,
    fsmblks: size_t,
    uordblks: size_t,
    fordblks: size_t,
    keepcost: size_t,
}

/// `struct mallinfo`: the same, each as an `int` that overflows.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NarrowMallocFigures([c_int; 10]);

/// One arena's figures.
struct Heap {
    name: String,
    in_use: u64,
    blocks: u64,
    held: u64,
    peak: u64,
    addresses: u64,
}

fn heaps() -> Vec<Heap> {
    let all = arena::list().into_iter().filter_map(|arena| {
        let stats = arena.stats().ok()?;
        Some(Heap {
            name: arena.name().unwrap_or_default(),
            in_use: stats.allocated.get(),
            blocks: stats.blocks,
            held: stats.reserved.get().max(stats.allocated.get()),
            peak: stats.peak.get(),
            addresses: stats.addresses.get(),
        })
    });
    all.collect()
}

fn glibc() -> MallocFigures {
    type Mallinfo2 = unsafe extern "C" fn() -> MallocFigures;
    // SAFETY: null is `None` (glibc before 2.33), and the one symbol of this name has this type.
    unsafe {
        let real = std::mem::transmute::<*mut c_void, Option<Mallinfo2>>(MALLINFO2.find());
        real.map(|real| without_own(real(), crate::far::OWN_BYTES.load(Relaxed)))
            .unwrap_or_default()
    }
}

/// The program's part of glibc's figures: mostly far memory's tables are large blocks.
fn without_own(all: MallocFigures, own: usize) -> MallocFigures {
    let large = own.min(all.hblkhd);
    let rest = (own - large).min(all.uordblks);
    MallocFigures {
        hblkhd: all.hblkhd - large,
        uordblks: all.uordblks - rest,
        arena: all.arena.saturating_sub(rest),
        ..all
    }
}

/// `mallinfo2(3)`.
#[no_mangle]
pub extern "C" fn mallinfo2() -> MallocFigures {
    let mut all = glibc();
    for heap in heaps() {
        all.arena += heap.held as usize;
        all.uordblks += heap.in_use as usize;
        all.fordblks += (heap.held - heap.in_use) as usize;
    }
    all
}

/// `mallinfo(3)`.
#[no_mangle]
pub extern "C" fn mallinfo() -> NarrowMallocFigures {
    let m = mallinfo2();
    let all = [
        m.arena, m.ordblks, m.smblks, m.hblks, m.hblkhd, m.usmblks, m.fsmblks, m.uordblks,
        m.fordblks, m.keepcost,
    ];
    NarrowMallocFigures(all.map(|n| n as c_int))
}

/// `malloc_stats(3)`: one paragraph an arena on standard error, glibc's own heap last.
#[no_mangle]
pub extern "C" fn malloc_stats() {
    let say = |name: &str, system: u64, used: u64| {
        let mut line = Line::new();
        let _cut_if_too_long = write!(
            line,
            "Arena {name}:\nsystem bytes     = {system:10}\nin use bytes     = {used:10}\n"
        );
        line.to_stderr();
    };
    let (mut system, mut used) = (0, 0);
    for heap in heaps() {
        say(&heap.name, heap.held, heap.in_use);
        system += heap.held;
        used += heap.in_use;
    }
    let rest = glibc();
    let (rest_system, rest_used) =
        ((rest.arena + rest.hblkhd) as u64, (rest.uordblks + rest.hblkhd) as u64);
    say("of the C library", rest_system, rest_used);
    let mut line = Line::new();
    let _cut_if_too_long = write!(
        line,
        "Total (incl. mmap):\nsystem bytes     = {:10}\nin use bytes     = {:10}\n",
        system + rest_system,
        used + rest_used
    );
    line.to_stderr();
}

/// `malloc_info(3)`: one heap an arena, glibc's own last. `EINVAL` for options, as in glibc.
///
/// # Safety
/// As in C: `file` is open for writing.
#[no_mangle]
pub unsafe extern "C" fn malloc_info(options: c_int, file: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let mut text = String::from("<malloc version=\"1\">\n");
    let rest = glibc();
    let mut all = heaps();
    all.push(Heap {
        name: "of the C library".to_owned(),
        in_use: (rest.uordblks + rest.hblkhd) as u64,
        blocks: 0,
        held: (rest.arena + rest.hblkhd) as u64,
        peak: (rest.arena + rest.hblkhd) as u64,
        addresses: (rest.arena + rest.hblkhd) as u64,
    });
    let mut total = [0; 4];
    for (nr, heap) in all.iter().enumerate() {
        let _infallible = writeln!(text, "<heap nr=\"{nr}\">");
        let figures = [heap.held - heap.in_use, heap.held, heap.peak, heap.addresses];
        totals(&mut text, figures);
        let _infallible =
            writeln!(text, "<used count=\"{}\" size=\"{}\"/>\n</heap>", heap.blocks, heap.in_use);
        total.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
    }
    totals(&mut text, total);
    text.push_str("</malloc>\n\0");
    // SAFETY: the text ends with zero, and the file is the caller's.
    let written = unsafe { libc::fputs(text.as_ptr().cast::<c_char>(), file) };
    if written < 0 {
        -1
    } else {
        0
    }
}

/// Free bytes, bytes held, the most ever held, addresses.
fn totals(text: &mut String, [free, held, peak, addresses]: [u64; 4]) {
    let _infallible = write!(
        text,
        "<total type=\"rest\" count=\"0\" size=\"{free}\"/>\n\
         <system type=\"current\" size=\"{held}\"/>\n\
         <system type=\"max\" size=\"{peak}\"/>\n\
         <aspace type=\"total\" size=\"{addresses}\"/>\n"
    );
}

/// `malloc_trim(3)`: free pages of all arenas go back to the kernel, and those of glibc's own heap
/// where that is the program's. 1 when any went.
#[no_mangle]
pub extern "C" fn malloc_trim(pad: size_t) -> c_int {
    type MallocTrim = unsafe extern "C" fn(size_t) -> c_int;
    let far = crate::far::OWN_BYTES.load(Relaxed) > 0;
    // SAFETY: null is `None`, and the one symbol of this name has this type.
    let rest = unsafe {
        let real = std::mem::transmute::<*mut c_void, Option<MallocTrim>>(MALLOC_TRIM.find());
        real.filter(|_| !far).map_or(0, |real| real(pad))
    };
    let ours = arena::list().into_iter().filter(|arena| arena.trim().get() > 0).count();
    c_int::from(ours > 0 || rest != 0)
}
