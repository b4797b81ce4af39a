//! System calls on memory: heap, mappings, protection.

use super::calls::{EFAULT, EINVAL, ENOMEM};
use super::{Errno, Host, Process, ProcessEvent, ProcessObserver};
use crate::memory::{PAGE_BYTES, READ, USER_END, WRITE};

/// `MAP_FIXED`, `MAP_ANONYMOUS`, `MAP_FIXED_NOREPLACE`.
const FIXED: u64 = 0x10;
const ANONYMOUS: u64 = 0x20;
const FIXED_NOREPLACE: u64 = 0x10_0000;
/// `MREMAP_MAYMOVE`, `MREMAP_FIXED`.
const MAY_MOVE: u64 = 1;
const MOVE_TO: u64 = 2;
/// Regions of a process at most, as Linux has it (`DEFAULT_MAX_MAP_COUNT`).
const MOST_REGIONS: usize = 65_530;

impl<H: Host> Process<H> {
    /// A call on memory; `None` for other numbers.
    pub(super) fn memory_call<O: ProcessObserver>(
        &mut self,
        number: u64,
        a: [u64; 6],
        index: usize,
        observer: &mut O,
    ) -> Option<Result<u64, Errno>> {
        let instret = self.threads[index].hart.instret;
        Some(match number {
            214 => Ok(self.set_break(a[0], instret, observer)),
            215 => self.unmap(a[0], a[1], instret, observer),
            216 => self.remap(a, instret, observer),
            222 => self.map(a, instret, observer),
            226 => self.protect(a),
            // msync, mlock, munlock, mlockall, munlockall: nothing is written back or swapped.
            227..=231 => Ok(0),
            233 => page_end(a[0], a[1]).map(|end| {
                if a[2] == 4 {
                    self.memory.discard(a[0], end);
                }
                0
            }),
            _ => return None,
        })
    }

    /// A process that cuts its memory into too many regions is refused more.
    fn check_region_count(&self) -> Result<(), Errno> {
        if self.memory.region_count() < MOST_REGIONS {
            Ok(())
        } else {
            Err(ENOMEM)
        }
    }

    fn protect(&mut self, a: [u64; 6]) -> Result<u64, Errno> {
        let end = page_end(a[0], a[1])?;
        self.check_region_count()?;
        if self.memory.protect(a[0], end, (a[2] & 7) as u8) {
            Ok(0)
        } else {
            Err(ENOMEM)
        }
    }

    /// `mremap`: in place where that is free, else moved where the guest allows it.
    fn remap<O: ProcessObserver>(
        &mut self,
        a: [u64; 6],
        instret: u64,
        observer: &mut O,
    ) -> Result<u64, Errno> {
        let [old, old_length, new_length, flags, to, _] = a;
        let (old_end, new_length) = (page_end(old, old_length)?, page_end(0, new_length)?);
        let old_length = old_end - old;
        if old_length == 0 || new_length == 0 || flags & !(MAY_MOVE | MOVE_TO) != 0 {
            return Err(EINVAL);
        }
        let protection = self.memory.protection_at(old).ok_or(EFAULT)?;
        if !self.memory.is_mapped(old, old_end) {
            return Err(EFAULT);
        }
        self.check_region_count()?;
        let new = match flags & MOVE_TO {
            0 if new_length <= old_length => old,
            0 if old + new_length <= USER_END && self.memory.is_free(old_end, old + new_length) => {
                old
            }
            0 if flags & MAY_MOVE == 0 => return Err(ENOMEM),
            0 => self.memory.find_free(new_length, self.mapping_top).ok_or(ENOMEM)?,
            _ => {
                let end = page_end(to, new_length)?;
                if flags & MAY_MOVE == 0 || to < PAGE_BYTES || to < old_end && old < end {
                    return Err(EINVAL);
                }
                to
            }
        };
        let kept = new_length.min(old_length);
        self.memory.unmap(old + kept, old_end);
        if new != old {
            self.memory.unmap(new, new + new_length);
            self.memory.relocate(old, old + kept, new);
            observer.event(instret, ProcessEvent::Unmap { start: old, length: old_length });
        } else if kept < old_length {
            let (start, length) = (old + kept, old_length - kept);
            observer.event(instret, ProcessEvent::Unmap { start, length });
        }
        if kept < new_length {
            self.memory.map(new + kept, new + new_length, protection);
        }
        if new != old || kept < new_length {
            let event = ProcessEvent::Map { start: new, length: new_length, protection };
            observer.event(instret, event);
        }
        Ok(new)
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
        self.check_region_count()?;
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
        self.check_region_count()?;
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
}

/// The end of a range of whole pages that begins at a page and lies in user memory.
fn page_end(start: u64, length: u64) -> Result<u64, Errno> {
    let end = start.checked_add(length).filter(|end| *end <= USER_END).ok_or(ENOMEM)?;
    if start % PAGE_BYTES != 0 {
        return Err(EINVAL);
    }
    Ok(end.next_multiple_of(PAGE_BYTES))
}
