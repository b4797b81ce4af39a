//! `terrace_crash.h` for Rust: tells `terrace crash` which objects a program needs to go on after a
//! crash, where a crash may happen, and what is flushed. A module to copy; it needs `std` alone.
//! Without the tool a flush is one no-op instruction.
#![allow(dead_code)]

use std::io::Write;

/// No-ops of seven bytes that a recorder recognises by their displacement.
macro_rules! mark {
    ($id:expr, $pointer:expr) => {{
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a no-op; it reads and writes nothing.
        unsafe {
            std::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80, {id}, 0xa0, 0x44, 0x7e",
                id = const $id,
                in("rax") $pointer,
                options(nostack, preserves_flags)
            )
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = $pointer;
    }};
}

/// The line that holds this address: CLWB.
#[inline(always)]
pub fn cache_line_write_back<T>(pointer: *const T) {
    mark!(0xc4, pointer);
}

/// The same, and the line leaves all caches: CLFLUSH, CLFLUSHOPT.
#[inline(always)]
pub fn flush_cache_line<T>(pointer: *const T) {
    mark!(0xc5, pointer);
}

/// The begin of a phase of the region, from 1 to 15: successes and rates are counted by them then.
#[inline(always)]
pub fn crash_phase<const NUMBER: u8>() {
    const { assert!(1 <= NUMBER && NUMBER <= 15) };
    mark!(0xd0 + NUMBER, 0u64);
}

/// All lines of all caches: WBINVD.
#[inline(always)]
pub fn write_back_invalidate_cache() {
    mark!(0xc6, 0u64);
}

const CRITICAL: u32 = 1;
const CONSISTENT: u32 = 2;
const READ_ONLY: u32 = 3;

struct DataObject {
    kind: u32,
    element: u32,
    pointer: *mut u8,
    bytes: usize,
    type_name: &'static str,
    name: &'static str,
}

impl DataObject {
    /// As it lies in region files and images.
    fn packed(&self) -> Vec<u8> {
        let text = |text: &str, bytes: usize| {
            let mut padded = text.as_bytes()[..text.len().min(bytes - 1)].to_vec();
            padded.resize(bytes, 0);
            padded
        };
        let mut out = self.kind.to_le_bytes().to_vec();
        out.extend(self.element.to_le_bytes());
        out.extend((self.pointer as u64).to_le_bytes());
        out.extend((self.bytes as u64).to_le_bytes());
        out.extend(text(self.type_name, 16));
        out.extend(text(self.name, 48));
        out
    }
}

/// The objects of a region in which a crash may happen.
#[derive(Default)]
pub struct CrashRegion {
    objects: Vec<DataObject>,
}

impl CrashRegion {
    fn add<T: Copy>(&mut self, kind: u32, name: &'static str, pointer: *mut T, count: usize) {
        let (element, type_name) = (std::mem::size_of::<T>(), std::any::type_name::<T>());
        let (bytes, pointer) = (count * element, pointer.cast());
        let element = element as u32;
        self.objects.push(DataObject { kind, element, pointer, bytes, type_name, name });
    }

    /// An object that a restart needs.
    ///
    /// # Safety
    /// `count` elements lie there until the region ends, any bytes are a `T`, and no reference is
    /// to them but to cells or atomics while a method of the region runs.
    pub unsafe fn critical_data<T: Copy>(&mut self, name: &'static str, at: *mut T, count: usize) {
        self.add(CRITICAL, name, at, count);
    }

    /// One that the program itself keeps consistent: a small integer among them is the iteration.
    ///
    /// # Safety
    /// See [`CrashRegion::critical_data`].
    pub unsafe fn consistent_data<T: Copy>(
        &mut self,
        name: &'static str,
        at: *mut T,
        count: usize,
    ) {
        self.add(CONSISTENT, name, at, count);
    }

    /// One that the program makes again by itself; it is in rates and in no image.
    ///
    /// # Safety
    /// See [`CrashRegion::critical_data`].
    pub unsafe fn readonly_data<T: Copy>(&mut self, name: &'static str, at: *mut T, count: usize) {
        self.add(READ_ONLY, name, at, count);
    }

    fn restored(&self) -> impl Iterator<Item = &DataObject> {
        self.objects.iter().filter(|o| o.kind != READ_ONLY && o.bytes > 0)
    }

    /// The begin of the code in which a crash may happen.
    pub fn start_crash(&self) {
        if let Some(path) = std::env::var_os("TERRACE_CRASH_REGION") {
            let mut out = b"TERRCRR1".to_vec();
            out.extend((self.objects.len() as u64).to_le_bytes());
            out.extend(0u64.to_le_bytes());
            self.objects.iter().for_each(|object| out.extend(object.packed()));
            for object in self.restored() {
                // SAFETY: as whoever named the object said.
                out.extend(unsafe { std::slice::from_raw_parts(object.pointer, object.bytes) });
            }
            if let Err(why) = std::fs::write(&path, out) {
                fail(&format!("cannot write {}: {why}", path.to_string_lossy()));
            }
        }
        mark!(0xc0, 0u64);
    }

    /// Its end.
    pub fn end_crash(&self) {
        mark!(0xc1, 0u64);
        if let Some(path) = std::env::var_os("TERRACE_CRASH_RESULT") {
            let file = std::fs::File::create(&path);
            if let Err(why) = file.and_then(|mut f| writeln!(f, "{}", self.iteration())) {
                fail(&format!("cannot write {}: {why}", path.to_string_lossy()));
            }
        }
    }

    /// What the consistent integer holds, as the iteration.
    fn iteration(&self) -> i64 {
        let integer = |o: &&DataObject| o.kind == CONSISTENT && [4, 8].contains(&o.bytes);
        match self.objects.iter().find(integer) {
            // SAFETY: as whoever named the object said; it may lie anywhere.
            Some(o) if o.bytes == 8 => unsafe { o.pointer.cast::<i64>().read_unaligned() },
            // SAFETY: the same.
            Some(o) => i64::from(unsafe { o.pointer.cast::<i32>().read_unaligned() }),
            None => 0,
        }
    }

    /// After a restart by the tool: fills the objects named so far from what memory held at the
    /// crash, and returns the last iteration known to be done. Otherwise does nothing and
    /// returns 0.
    pub fn crash_restore(&self) -> i64 {
        let Some(path) = std::env::var_os("TERRACE_CRASH_IMAGE") else { return 0 };
        let image = std::fs::read(&path).unwrap_or_else(|why| fail(&why.to_string()));
        let count = (self.objects.len() as u64).to_le_bytes();
        let mut at = 24 + 88 * self.objects.len();
        let known = image.starts_with(b"TERRCRI1")
            && image.get(8..16) == Some(&count[..])
            && self.objects.iter().enumerate().all(|(i, object)| {
                let ours = object.packed();
                image.get(24 + 88 * i..).is_some_and(|o| {
                    o.get(..4) == Some(&ours[..4]) && o.get(16..24) == Some(&ours[16..24])
                })
            });
        if !known {
            fail("the image has objects of other numbers, sizes or kinds than this program");
        }
        for object in self.restored() {
            let Some(content) = image.get(at..at + object.bytes) else {
                fail("the image ends early")
            };
            // SAFETY: as whoever named the object said.
            unsafe { object.pointer.copy_from_nonoverlapping(content.as_ptr(), object.bytes) };
            at += object.bytes;
        }
        self.iteration()
    }
}

/// The program cannot do what the tool asked it to.
fn fail(what: &str) -> ! {
    eprintln!("terrace_crash.rs: {what}");
    std::process::exit(122)
}
