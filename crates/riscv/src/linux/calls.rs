//! The table of system calls, and those on memory, threads, time and the process.

use super::{Activity, Errno, Host, Process, ProcessEnd, ProcessEvent, ProcessObserver, Thread};
use super::{MOST_THREADS, STACK_BYTES};
use crate::memory::{PAGE_BYTES, READ, USER_END, WRITE};

pub const ENOENT: Errno = Errno(2);
pub const EBADF: Errno = Errno(9);
pub const EAGAIN: Errno = Errno(11);
pub const ENOMEM: Errno = Errno(12);
pub const EFAULT: Errno = Errno(14);
pub const EINVAL: Errno = Errno(22);
pub const ENOTTY: Errno = Errno(25);
pub const ENAMETOOLONG: Errno = Errno(36);
pub const ENOSYS: Errno = Errno(38);
pub const ETIMEDOUT: Errno = Errno(110);

/// `MAP_FIXED`, `MAP_ANONYMOUS`, `MAP_FIXED_NOREPLACE`.
const FIXED: u64 = 0x10;
const ANONYMOUS: u64 = 0x20;
const FIXED_NOREPLACE: u64 = 0x10_0000;
/// `CLONE_VM | CLONE_THREAD`, `CLONE_PARENT_SETTID`, `CLONE_CHILD_CLEARTID`,
/// `CLONE_CHILD_SETTID`, `CLONE_SETTLS`.
const CLONE_SHARED: u64 = 0x1_0100;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
const CLONE_SETTLS: u64 = 0x8_0000;
/// The process's number; threads have the following ones.
const PID: u64 = 1000;
const NS_PER_S: u64 = 1_000_000_000;

impl<H: Host> Process<H> {
    /// Answers the call that a thread makes.
    pub(super) fn system_call<O: ProcessObserver>(&mut self, index: usize, observer: &mut O) {
        let hart = &self.threads[index].hart;
        let number = hart.x[17];
        let mut arguments = [0; 6];
        arguments.copy_from_slice(&hart.x[10..16]);
        let result = match self.file_call(number, arguments) {
            Some(result) => result,
            None => self.process_call(number, arguments, index, observer),
        };
        // A thread that waits gets its answer when it wakes.
        if !matches!(self.threads[index].activity, Activity::Waiting { .. }) {
            self.threads[index].hart.x[10] = match result {
                Ok(value) => value,
                Err(Errno(number)) => -i64::from(number) as u64,
            };
        }
    }

    fn process_call<O: ProcessObserver>(
        &mut self,
        number: u64,
        a: [u64; 6],
        index: usize,
        observer: &mut O,
    ) -> Result<u64, Errno> {
        let instret = self.threads[index].hart.instret;
        match number {
            93 => self.end_thread(index, a[0] as u8, observer),
            94 => self.end = Some(ProcessEnd::Exit(a[0] as u8)),
            96 => {
                self.threads[index].clear_at_exit = a[0];
                return Ok(PID + index as u64);
            }
            98 => return self.futex(index, a),
            // set_robust_list, sched_yield, sigaltstack, rt_sigaction, rt_sigprocmask: signals are
            // not delivered to handlers.
            99 | 124 | 132 | 134 | 135 => {}
            101 => return self.sleep(a[0]),
            115 => return self.sleep(a[2]),
            113 => {
                let now = self.host.now_ns(a[0] as u32);
                return self.put_time(a[1], now, 1);
            }
            114 => return if a[1] == 0 { Ok(0) } else { self.put_time(a[1], 1, 1) },
            123 => {
                self.memory.store(a[2], 1u64.to_le_bytes())?;
                return Ok(8);
            }
            129..=131 => return self.signal(index, if number == 131 { a[2] } else { a[1] }),
            160 => return self.put_names(a[0]),
            169 => {
                let now = self.host.now_ns(0);
                return self.put_time(a[0], now, 1000);
            }
            172 => return Ok(PID),
            173 => return Ok(1),
            174..=177 => return Ok(1000),
            178 => return Ok(PID + index as u64),
            214 => return Ok(self.set_break(a[0], instret, observer)),
            215 => return self.unmap(a[0], a[1], instret, observer),
            // Whoever grows a mapping falls back to copying.
            216 => return Err(ENOMEM),
            220 => return self.clone_thread(index, a, observer),
            222 => return self.map(a, instret, observer),
            226 => {
                let end = page_end(a[0], a[1])?;
                self.code.clear();
                let whole = self.memory.protect(a[0], end, (a[2] & 7) as u8);
                return if whole { Ok(0) } else { Err(ENOMEM) };
            }
            233 => {
                let end = page_end(a[0], a[1])?;
                if a[2] == 4 {
                    self.code.clear();
                    self.memory.discard(a[0], end);
                }
            }
            259 => self.code.clear(),
            261 => return self.limits(a),
            278 => {
                let mut bytes = vec![0; a[1].min(256) as usize];
                self.host.fill_random(&mut bytes);
                self.memory.write(a[0], &bytes)?;
                return Ok(bytes.len() as u64);
            }
            _ => return Err(ENOSYS),
        }
        Ok(0)
    }

    fn put_time(&mut self, at: u64, ns: u64, divisor: u64) -> Result<u64, Errno> {
        self.memory.store(at, (ns / NS_PER_S).to_le_bytes())?;
        self.memory.store(at.wrapping_add(8), (ns % NS_PER_S / divisor).to_le_bytes())?;
        Ok(0)
    }

    fn time_at(&mut self, at: u64) -> Result<u64, Errno> {
        let seconds = u64::from_le_bytes(self.memory.load(at)?);
        let ns = u64::from_le_bytes(self.memory.load(at.wrapping_add(8))?);
        if ns >= NS_PER_S {
            return Err(EINVAL);
        }
        Ok(seconds.saturating_mul(NS_PER_S).saturating_add(ns))
    }

    fn sleep(&mut self, at: u64) -> Result<u64, Errno> {
        let ns = self.time_at(at)?;
        self.host.sleep_ns(ns);
        Ok(0)
    }

    fn signal(&mut self, index: usize, signal: u64) -> Result<u64, Errno> {
        match signal as u8 {
            0 => Ok(0),
            signal @ 1..=64 => {
                let pc = self.threads[index].hart.pc;
                let thread = index as u32;
                self.end = Some(ProcessEnd::Signal { signal, thread, pc, trap: None });
                Ok(0)
            }
            _ => Err(EINVAL),
        }
    }

    /// `uname`.
    fn put_names(&mut self, at: u64) -> Result<u64, Errno> {
        let mut bytes = [0; 6 * 65];
        // The release is the least that a C library of this decade accepts.
        for (i, text) in ["Linux", "terrace", "6.1.0", "#1", "riscv64", "(none)"].iter().enumerate()
        {
            bytes[65 * i..65 * i + text.len()].copy_from_slice(text.as_bytes());
        }
        self.memory.write(at, &bytes)?;
        Ok(0)
    }

    fn set_break<O: ProcessObserver>(&mut self, to: u64, instret: u64, observer: &mut O) -> u64 {
        let (old, new) = (self.heap_end.next_multiple_of(PAGE_BYTES), to.checked_add(PAGE_BYTES));
        let Some(new) = new.map(|end| (end - 1) / PAGE_BYTES * PAGE_BYTES) else {
            return self.heap_end;
        };
        if to < self.heap_start || new > USER_END || new > old && !self.memory.is_free(old, new) {
            return self.heap_end;
        }
        if new > old {
            self.memory.map(old, new, READ | WRITE);
        } else if new < old {
            self.memory.unmap(new, old);
        }
        self.heap_end = to;
        observer.event(instret, ProcessEvent::Break { end: to });
        to
    }

    fn unmap<O: ProcessObserver>(
        &mut self,
        start: u64,
        length: u64,
        instret: u64,
        observer: &mut O,
    ) -> Result<u64, Errno> {
        let end = page_end(start, length)?;
        self.code.clear();
        self.memory.unmap(start, end);
        observer.event(instret, ProcessEvent::Unmap { start, length: end - start });
        Ok(0)
    }

    fn map<O: ProcessObserver>(
        &mut self,
        a: [u64; 6],
        instret: u64,
        observer: &mut O,
    ) -> Result<u64, Errno> {
        let [hint, length, protection, flags, descriptor, offset] = a;
        let length = page_end(0, length)?;
        if length == 0 {
            return Err(EINVAL);
        }
        let fixed = flags & (FIXED | FIXED_NOREPLACE) != 0;
        let start = if fixed {
            let end = page_end(hint, length)?;
            if hint < PAGE_BYTES || flags & FIXED == 0 && !self.memory.is_free(hint, end) {
                return Err(EINVAL);
            }
            hint
        } else {
            self.memory.find_free(length, self.mapping_top).ok_or(ENOMEM)?
        };
        self.code.clear();
        self.memory.map(start, start + length, WRITE);
        if flags & ANONYMOUS == 0 {
            self.fill_from_file(start, length, descriptor as i32, offset)?;
        }
        let protection = (protection & 7) as u8;
        self.memory.protect(start, start + length, protection);
        observer.event(instret, ProcessEvent::Map { start, length, protection });
        Ok(start)
    }

    /// A private copy of a file's bytes.
    fn fill_from_file(
        &mut self,
        start: u64,
        length: u64,
        descriptor: i32,
        offset: u64,
    ) -> Result<(), Errno> {
        let before = self.host.seek(descriptor, 0, 1)?;
        self.host.seek(descriptor, offset as i64, 0)?;
        let mut bytes = vec![0; 1 << 16];
        let mut done = 0;
        while done < length {
            let part = bytes.len().min((length - done) as usize);
            let count = self.host.read(descriptor, &mut bytes[..part])?;
            if count == 0 {
                break;
            }
            self.memory.write(start + done, bytes.get(..count).ok_or(EINVAL)?)?;
            done += count as u64;
        }
        self.host.seek(descriptor, before as i64, 0)?;
        Ok(())
    }

    /// `prlimit64`: the stack has its size, the rest no limit; limits cannot be set.
    fn limits(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        if a[3] != 0 {
            let limit = if a[1] == 3 { STACK_BYTES } else { u64::MAX };
            self.memory.store(a[3], limit.to_le_bytes())?;
            self.memory.store(a[3].wrapping_add(8), u64::MAX.to_le_bytes())?;
        }
        Ok(0)
    }

    fn clone_thread<O: ProcessObserver>(
        &mut self,
        index: usize,
        a: [u64; 6],
        observer: &mut O,
    ) -> Result<u64, Errno> {
        let [flags, stack, parent_at, pointer, child_at, _] = a;
        if flags & CLONE_SHARED != CLONE_SHARED {
            return Err(ENOSYS);
        }
        if self.threads.len() >= MOST_THREADS {
            return Err(EAGAIN);
        }
        let number = self.threads.len();
        let tid = PID + number as u64;
        for (flag, at) in [(CLONE_PARENT_SETTID, parent_at), (CLONE_CHILD_SETTID, child_at)] {
            if flags & flag != 0 {
                self.memory.store(at, (tid as u32).to_le_bytes())?;
            }
        }
        let mut hart = self.threads[index].hart.clone();
        let instret = hart.instret;
        hart.instret = 0;
        hart.x[2] = stack;
        hart.x[10] = 0;
        if flags & CLONE_SETTLS != 0 {
            hart.x[4] = pointer;
        }
        let clear_at_exit = if flags & CLONE_CHILD_CLEARTID != 0 { child_at } else { 0 };
        let activity = Activity::Running;
        self.threads.push(Thread { hart, activity, woken_by: None, clear_at_exit });
        observer.enter(number as u32);
        observer.event(instret, ProcessEvent::ThreadStart);
        observer.enter(index as u32);
        Ok(tid)
    }

    fn futex(&mut self, index: usize, a: [u64; 6]) -> Result<u64, Errno> {
        let [address, operation, value, timeout, _, bits] = a;
        // Without the bits for private futexes and the real-time clock.
        match operation & 0x7f {
            command @ (0 | 9) => {
                let now = u32::from_le_bytes(self.memory.load(address)?);
                if now != value as u32 {
                    return Err(EAGAIN);
                }
                let mask = if command == 9 { bits as u32 } else { u32::MAX };
                let deadline_ns = match timeout {
                    0 => None,
                    at if command == 9 => Some(self.time_at(at)?),
                    at => Some(self.time_at(at)?.saturating_add(self.host.now_ns(1))),
                };
                let expected = now;
                self.threads[index].activity =
                    Activity::Waiting { address, expected, mask, deadline_ns };
                Ok(0)
            }
            command @ (1 | 10) => {
                let bits = if command == 10 { bits as u32 } else { u32::MAX };
                Ok(self.wake(index, address, value.min(i32::MAX as u64), bits))
            }
            _ => Err(ENOSYS),
        }
    }
}

/// The end of a range of whole pages that begins at a page and lies in user memory.
fn page_end(start: u64, length: u64) -> Result<u64, Errno> {
    let end = start.checked_add(length).filter(|end| *end <= USER_END).ok_or(ENOMEM)?;
    if start % PAGE_BYTES != 0 {
        return Err(EINVAL);
    }
    Ok(end.next_multiple_of(PAGE_BYTES))
}
