//! Memory that the guest of the lab shares with its timing plugin, and where the kernel keeps what
//! a CPU runs. What lies in the memory is for its reader to know.

use crate::btf::Btf;
use crate::{Root, SysError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared memory device of QEMU (`ivshmem-plain`): vendor and device.
const SHARED_MEMORY: [(&str, &str); 2] = [("vendor", "0x1af4"), ("device", "0x1110")];
const DEVICES: &str = "/sys/bus/pci/devices";

/// The end of the lab's shared memory, mapped.
#[derive(Debug)]
pub struct UnitMemory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value; its words are read and written as atomics, and its
// records only between tail and head, by whoever holds the ring exclusively.
unsafe impl Send for UnitMemory {}
// SAFETY: as above.
unsafe impl Sync for UnitMemory {}

impl UnitMemory {
    /// Maps the last `bytes` of the device's memory, whole pages.
    ///
    /// # Errors
    /// [`SysError::Absent`] where there is no such device, as everywhere but in the lab's guest;
    /// [`SysError::NotPermitted`] for other users than root.
    pub fn open(root: &Root, bytes: usize) -> Result<Self, SysError> {
        let remedy = "only the lab's guest has this device, and root may map it";
        let absent = || SysError::from_errno("open", DEVICES, libc::ENOENT, remedy);
        let name = root.list(DEVICES)?.into_iter().find(|name| {
            SHARED_MEMORY.iter().all(|(file, value)| {
                root.text(&format!("{DEVICES}/{name}/{file}")).is_ok_and(|t| t.trim() == *value)
            })
        });
        let path = format!("{DEVICES}/{}/resource2", name.ok_or_else(absent)?);
        let failed = |e: &std::io::Error| SysError::from_io("open", &path, e, remedy);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(root.path(&path))
            .map_err(|e| failed(&e))?;
        let length = file.metadata().map_err(|e| failed(&e))?.len();
        let before = length.checked_sub(bytes as u64).ok_or_else(absent)?;
        let offset = libc::off_t::try_from(before).map_err(|_| absent())?;
        // SAFETY: a fresh shared mapping of a file that is long enough, at an address of the
        // kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(SysError::last("mmap", path, remedy));
        }
        Ok(Self { base: base.cast(), bytes })
    }

    fn atomic(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.bytes / 8, "word {word} of {} bytes", self.bytes);
        // SAFETY: within the mapping by the check and aligned, since mappings begin at a page; the
        // device writes it too, which is why it is an atomic.
        unsafe { &*self.base.cast::<AtomicU64>().add(word) }
    }

    /// The word of this number, eight bytes each.
    ///
    /// # Panics
    /// Beyond the memory.
    #[must_use]
    pub fn word(&self, word: usize) -> u64 {
        self.atomic(word).load(Ordering::Acquire)
    }

    /// Writes a word.
    ///
    /// # Panics
    /// Beyond the memory.
    pub fn set_word(&self, word: usize, value: u64) {
        self.atomic(word).store(value, Ordering::Release);
    }

    /// Where a ring begins whose header and `data` bytes end within the memory.
    pub(crate) fn ring_at(&self, offset: usize, header: usize, data: usize) -> Option<*mut u8> {
        let end = offset.checked_add(header)?.checked_add(data)?;
        // SAFETY: the offset is below the mapping's end by the check.
        (offset % 8 == 0 && end <= self.bytes).then(|| unsafe { self.base.add(offset) })
    }
}

impl Drop for UnitMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `open` made; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Executes the no-op instruction `nopl disp32(%rax)` with this displacement, which the lab's
/// timing plugin recognises; nothing elsewhere.
pub fn execute_mark<const MARK: u32>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a no-op: it accesses no memory and changes no register.
    unsafe {
        std::arch::asm!(
            ".byte 0x0f, 0x1f, 0x80",
            ".long {mark}",
            mark = const MARK,
            options(nostack, preserves_flags)
        );
    }
}

/// Where the kernel keeps which task a CPU runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentTaskOffsets {
    /// The pointer to the task, from the start of the CPU's own area.
    pub current: u64,
    /// `task_struct.pid`.
    pub pid: u64,
    /// `task_struct.tgid`.
    pub tgid: u64,
}

impl CurrentTaskOffsets {
    /// From the kernel's own type information (`/sys/kernel/btf/vmlinux`). The pointer is
    /// `current_task`, from Linux 6.2 to 6.14 a part of `pcpu_hot` (kernel
    /// `arch/x86/include/asm/current.h`).
    ///
    /// # Errors
    /// [`SysError::Absent`] where the kernel does not tell.
    pub fn find(root: &Root) -> Result<Self, SysError> {
        const PATH: &str = "/sys/kernel/btf/vmlinux";
        let bytes = std::fs::read(root.path(PATH)).unwrap_or_default();
        Self::parse(&bytes).ok_or_else(|| {
            let remedy = "it takes a kernel with CONFIG_DEBUG_INFO_BTF";
            SysError::from_errno("read", PATH, libc::ENOENT, remedy)
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let btf = Btf::new(bytes)?;
        let alone = || btf.cpu_variable("current_task");
        let hot = || Some(btf.cpu_variable("pcpu_hot")? + btf.offset("pcpu_hot", "current_task")?);
        Some(Self {
            current: alone().or_else(hot)?,
            pid: btf.offset("task_struct", "pid")?,
            tgid: btf.offset("task_struct", "tgid")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_labs_guest_has_a_unit() {
        let folder = std::env::temp_dir().join(format!("terrace-unit-{}", std::process::id()));
        let device = folder.join("sys/bus/pci/devices/0000:00:02.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("vendor"), "0x1af4\n").unwrap();
        std::fs::write(device.join("device"), "0x1000\n").unwrap();
        let root = Root::with_prefix(&folder);
        let error = UnitMemory::open(&root, 4096).unwrap_err();
        assert!(matches!(error, SysError::Absent { .. }), "{error}");
        // A file stands for the device's memory.
        std::fs::write(device.join("device"), "0x1110\n").unwrap();
        let mut content = vec![0_u8; 3 * 4096];
        content[2 * 4096] = 7;
        std::fs::write(device.join("resource2"), &content).unwrap();
        let memory = UnitMemory::open(&root, 4096).unwrap();
        assert_eq!(memory.word(0), 7, "the last page");
        memory.set_word(1, 9);
        let written = std::fs::read(device.join("resource2")).unwrap();
        assert_eq!((written[2 * 4096 + 8], written[8]), (9, 0));
        assert!(memory.ring_at(0, 2048, 2048).is_some() && memory.ring_at(8, 2048, 2048).is_none());
        assert!(UnitMemory::open(&root, 1 << 20).is_err(), "more than there is");
        execute_mark::<0x7e44_a0fe>();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_current_task_is_found_or_it_says_what_is_missing() {
        match CurrentTaskOffsets::find(&Root::live()) {
            Ok(found) => assert!(found.current > 0 && found.pid > 0 && found.tgid == found.pid + 4),
            Err(error) => assert!(error.to_string().contains("vmlinux"), "{error}"),
        }
        assert_eq!(CurrentTaskOffsets::parse(b"\x9f\xeb nothing"), None);
    }
}
