//! What a thread of the program has while it runs from the cache. Its address is in GS; the
//! program's own thread-local storage, behind FS, is left alone.

use crate::ring::Writer;
use crate::sys;
use crate::waiting::Waiting;

/// The register that points to the next word to write while code of the cache runs.
pub const RING: u8 = 15;
/// The register that code of the cache computes with. The program's own values of the two are in
/// `registers`.
pub const SCRATCH: u8 = 14;

/// Entries of the table of indirect jumps: a program counter's low 16 bits say which.
pub const JUMPS: usize = 1 << 16;

/// Fixed offsets: `offset_of!` hands them to the assembly and to the code made.
#[repr(C)]
pub struct Context {
    pub me: *mut Context,
    /// Blocks leave for `runtime` where the ring's register is above; 0 makes all of them leave.
    pub limit: u64,
    /// The same, negative, for code that may not change the flags.
    pub minus_limit: u64,
    /// Where code of the cache keeps a register it borrows.
    pub save: [u64; 3],
    pub save_rcx: u64,
    pub target: u64,
    /// Where FS points, as the program set it.
    pub fs_base: u64,
    pub next: u64,
    pub reason: u64,
    pub argument: u64,
    pub jump: u64,
    pub xsave: u64,
    pub stack: u64,
    pub flags: u64,
    /// Where the program is, while it is not in the cache.
    pub rip: u64,
    /// By number as instructions have it: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub registers: [u64; 16],
    pub writer: Writer,
    pub waiting: Waiting,
    /// Where the thread went on by itself last, until its first trap there.
    pub detached: u64,
    /// Bytes of this context and what lies behind it.
    pub bytes: u64,
    pub sink: u64,
}

pub const RAX: usize = 0;
pub const RCX: usize = 1;
pub const RDX: usize = 2;
pub const RSP: usize = 4;
pub const RSI: usize = 6;
pub const RDI: usize = 7;
pub const R11: usize = 11;

/// Where the tables lie, from the context's begin: counters negated, then addresses in the cache.
pub const TABLE_PCS: u64 = 4096;
pub const TABLE_CODE: u64 = TABLE_PCS + JUMPS as u64 * 8;
const SINK: u64 = TABLE_CODE + JUMPS as u64 * 8;
const XSAVE: u64 = SINK + crate::ring::SINK_BYTES;
pub const XSAVE_BYTES: u64 = 16384;
const STACK: u64 = XSAVE + XSAVE_BYTES;
const STACK_BYTES: u64 = 128 << 10;
const SIGNAL_STACK: u64 = STACK + STACK_BYTES;
pub const SIGNAL_STACK_BYTES: u64 = 64 << 10;
const ALL: u64 = SIGNAL_STACK + SIGNAL_STACK_BYTES;

const _: () = assert!(core::mem::size_of::<Context>() <= TABLE_PCS as usize);

/// Offset of a field from GS.
macro_rules! at {
    ($field:ident) => {
        core::mem::offset_of!($crate::context::Context, $field) as i32
    };
}
pub(crate) use at;

/// Where the program's register of this number is kept.
pub fn home(register: u8) -> i32 {
    at!(registers) + 8 * i32::from(register)
}

impl Context {
    /// A new thread's; nothing of it is known to the kernel yet.
    pub fn new() -> Option<&'static mut Context> {
        let at = sys::map(0, ALL, sys::PROT_READ | sys::PROT_WRITE, sys::MAP_NORESERVE)?;
        // SAFETY: new memory of that size, all zeros, which every field may be.
        let context = unsafe {
            *((at + TABLE_PCS) as *mut u64) = 1;
            *((at + XSAVE + 24) as *mut u32) = 0x1f80;
            &mut *(at as *mut Context)
        };
        context.me = at as *mut Context;
        context.bytes = ALL;
        context.sink = at + SINK;
        context.xsave = at + XSAVE;
        context.stack = at + STACK + STACK_BYTES;
        context.flags = 0x202;
        Some(context)
    }

    /// An indirect jump to `pc` goes to `code` from now on.
    pub fn remember(&mut self, pc: u64, code: u64) {
        let entry = (pc & 0xffff) * 8;
        let base = self.me as u64 + entry;
        // SAFETY: both tables lie behind the context and have an entry for each 16-bit number.
        unsafe {
            *((base + TABLE_PCS) as *mut u64) = pc.wrapping_neg();
            *((base + TABLE_CODE) as *mut u64) = code;
        }
    }

    /// Makes this the running thread's context, with a stack for signals.
    ///
    /// # Safety
    /// The thread must be in the runtime and have no other context in use.
    pub unsafe fn adopt(&self) {
        let stack = [self.me as u64 + SIGNAL_STACK, 0, SIGNAL_STACK_BYTES];
        // SAFETY: GS is the translator's alone (programs that want it are refused); the stack is
        // this context's.
        unsafe {
            sys::call3(sys::ARCH_PRCTL, 0x1001, self.me as u64, 0);
            sys::call3(sys::SIGALTSTACK, stack.as_ptr() as u64, 0, 0);
        }
    }
}
