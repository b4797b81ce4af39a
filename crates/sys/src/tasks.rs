//! The topmost page table of a process, by following the kernel's own pointers.
//!
//! `/proc/kcore` carries a copy of the reader's own `task_struct` (note `NT_TASKSTRUCT`, kernel
//! `fs/proc/kcore.c`), and the kernel's type information says where in it the list of all processes
//! hangs ([`crate::btf`]). From there: `task_struct.tasks` to the process, `.mm`, `mm_struct.pgd`.
//! Nothing is written. Pointers may change while they are followed, so every answer is checked
//! against pagemap by its user before it is believed.

use crate::btf::Btf;
use crate::kernelmem::Notes;
use crate::{KernelMemory, Root};
use terrace_types::Pid;

/// Processes passed over before the search is given up: the kernel's own bound of process numbers.
const MOST: u32 = 1 << 22;

/// Where things lie in the kernel's structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offsets {
    leader: u64,
    tasks: u64,
    tgid: u64,
    mm: u64,
    pgd: u64,
}

/// Finds processes in kernel memory.
#[derive(Debug)]
pub(crate) struct Tasks {
    own: u64,
    offsets: Offsets,
    five_levels: bool,
}

impl Tasks {
    /// Reads type information and notes; `None` where the kernel has none.
    #[must_use]
    pub fn open(root: &Root, memory: &KernelMemory) -> Option<Self> {
        let bytes = std::fs::read(root.path("/sys/kernel/btf/vmlinux")).ok()?;
        let btf = Btf::new(&bytes)?;
        let offsets = Offsets {
            leader: btf.offset("task_struct", "group_leader")?,
            tasks: btf.offset("task_struct", "tasks")?,
            tgid: btf.offset("task_struct", "tgid")?,
            mm: btf.offset("task_struct", "mm")?,
            pgd: btf.offset("mm_struct", "pgd")?,
        };
        let notes = Notes::parse(&memory.notes()?)?;
        let at = usize::try_from(offsets.leader).ok()?;
        let own = u64::from_ne_bytes(notes.own_task.get(at..at + 8)?.try_into().ok()?);
        let tasks = Self { own, offsets, five_levels: notes.five_levels };
        // Our own leader must name itself.
        (tasks.number(memory, own) == Some(std::process::id() as i32)).then_some(tasks)
    }

    /// Whether tables have five levels.
    #[must_use]
    pub const fn five_levels(&self) -> bool {
        self.five_levels
    }

    fn word(memory: &KernelMemory, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        memory.read_virtual(at, &mut bytes).then_some(u64::from_ne_bytes(bytes))
    }

    fn number(&self, memory: &KernelMemory, task: u64) -> Option<i32> {
        let mut bytes = [0; 4];
        memory
            .read_virtual(task.wrapping_add(self.offsets.tgid), &mut bytes)
            .then_some(i32::from_ne_bytes(bytes))
    }

    /// The kernel's address of a process; the list is in order of birth, from ourselves on.
    #[must_use]
    pub fn find(&self, memory: &KernelMemory, pid: Pid) -> Option<u64> {
        let mut task = self.own;
        for _ in 0..MOST {
            if self.number(memory, task)? == pid.0 {
                return Some(task);
            }
            let next = Self::word(memory, task.wrapping_add(self.offsets.tasks))?;
            task = next.wrapping_sub(self.offsets.tasks);
            if task == self.own {
                return None;
            }
        }
        None
    }

    /// Frame of the topmost table of the process at `task`; `None` when it is `pid` no more, or
    /// ends.
    #[must_use]
    pub fn top_table(&self, memory: &KernelMemory, task: u64, pid: Pid) -> Option<u64> {
        (self.number(memory, task)? == pid.0).then_some(())?;
        let mm = Self::word(memory, task.wrapping_add(self.offsets.mm)).filter(|mm| *mm != 0)?;
        let pgd = Self::word(memory, mm.wrapping_add(self.offsets.pgd))?;
        memory.frame_of(pgd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ourselves_and_a_child_are_found_or_it_says_why() {
        let root = Root::live();
        let memory = match KernelMemory::open(&root) {
            Ok(memory) => memory,
            Err(e) => return println!("skipped: {e}"),
        };
        let Some(tasks) = Tasks::open(&root, &memory) else {
            return println!(
                "skipped: no type information (or a kernel without the note of the reader's task)"
            );
        };
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        let found = tasks.find(&memory, pid);
        let table = found.and_then(|task| tasks.top_table(&memory, task, pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(table.is_some_and(|pfn| pfn > 0));
        assert_ne!(found, tasks.find(&memory, Pid(std::process::id() as i32)));
        assert_eq!(tasks.find(&memory, Pid(-7)), None);
    }
}
