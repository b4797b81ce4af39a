//! Where members of the kernel's structures lie, from the kernel's own type information
//! (`/sys/kernel/btf/vmlinux`; format: kernel `Documentation/bpf/btf.rst`).
//!
//! Only what is needed to follow a few pointers: the byte offset of a named member of a named
//! structure, looked for in unnamed parts of it as well, and of a variable that each CPU has. Every
//! length is checked, for the bytes may be anything.

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_VARIABLE: u32 = 14;
const KIND_SECTION: u32 = 15;
/// Unnamed structures within unnamed structures that are followed.
const DEPTH: u32 = 4;

/// Type information.
#[derive(Debug)]
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    names: &'a [u8],
}

/// One type's head: 12 bytes, and what follows them.
#[derive(Debug, Clone, Copy)]
struct Type<'a> {
    name: u32,
    info: u32,
    rest: &'a [u8],
}

impl Type<'_> {
    const fn kind(&self) -> u32 {
        self.info >> 24 & 0x1f
    }

    const fn members(&self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// Offsets hold the size of a bit field in their upper byte.
    const fn bit_fields(&self) -> bool {
        self.info >> 31 == 1
    }
}

impl<'a> Btf<'a> {
    /// Reads the header; `None` for anything that is no type information of this byte order.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let head = word(bytes, 4)? as usize;
        let part = |at: usize| -> Option<&'a [u8]> {
            let start = head.checked_add(word(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, at + 4)? as usize)?)
        };
        (magic == MAGIC).then_some(())?;
        Some(Self { types: part(8)?, names: part(16)? })
    }

    /// Bytes from the start of `structure` to its `member`.
    #[must_use]
    pub fn offset(&self, structure: &str, member: &str) -> Option<u64> {
        let is = |t: &Type<'_>| {
            t.kind() == KIND_STRUCT && t.members() > 0 && self.named(t.name, structure)
        };
        let found = self.iter().find(is)?;
        self.within(found, member, DEPTH)
    }

    /// Bytes from the start of a CPU's own area to the variable of this name that each CPU has.
    #[must_use]
    pub fn cpu_variable(&self, name: &str) -> Option<u64> {
        let is = |t: Type<'_>| t.kind() == KIND_VARIABLE && self.named(t.name, name);
        let id = self.iter().position(is)? as u32 + 1;
        let section = self
            .iter()
            .find(|t| t.kind() == KIND_SECTION && self.named(t.name, ".data..percpu"))?;
        (0..section.members())
            .map(|i| i * 12)
            .find(|at| word(section.rest, *at) == Some(id))
            .and_then(|at| word(section.rest, at + 4))
            .map(u64::from)
    }

    fn within(&self, outer: Type<'a>, member: &str, depth: u32) -> Option<u64> {
        for at in (0..outer.members()).map(|i| i * 12) {
            let (name, id, offset) =
                (word(outer.rest, at)?, word(outer.rest, at + 4)?, word(outer.rest, at + 8)?);
            let bits = if outer.bit_fields() { offset & 0x00ff_ffff } else { offset };
            let bytes = u64::from(bits / 8);
            if self.named(name, member) {
                return (bits % 8 == 0).then_some(bytes);
            }
            let unnamed = self.names.get(name as usize) == Some(&0) && depth > 0;
            // Types are numbered from one.
            let inner = if unnamed { self.iter().nth((id as usize).wrapping_sub(1)) } else { None };
            let inner = inner.filter(|t| matches!(t.kind(), KIND_STRUCT | KIND_UNION));
            if let Some(inside) = inner.and_then(|inner| self.within(inner, member, depth - 1)) {
                return Some(bytes + inside);
            }
        }
        None
    }

    fn named(&self, at: u32, name: &str) -> bool {
        let rest = self.names.get(at as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// All types in order of their numbers; ends at the first that is cut off or of no known kind.
    fn iter(&self) -> impl Iterator<Item = Type<'a>> + 'a {
        let mut rest = self.types;
        std::iter::from_fn(move || {
            let (name, info) = (word(rest, 0)?, word(rest, 4)?);
            let all = rest.get(12..)?;
            let kind = Type { name, info, rest: all };
            let size = match kind.kind() {
                1 | 14 | 17 => 4,
                2 | 7..=12 | 16 | 18 => 0,
                3 => 12,
                4 | 5 | 15 | 19 => kind.members() * 12,
                6 | 13 => kind.members() * 8,
                _ => return None,
            };
            rest = all.get(size..)?;
            Some(kind)
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `struct task { int a; struct { char *b; }; }`
    fn sample() -> Vec<u8> {
        let names = b"\0int\0task\0a\0b\0hot\0.data..percpu\0";
        let mut types = Vec::new();
        let mut put = |words: &[u32]| words.iter().for_each(|w| types.extend(w.to_ne_bytes()));
        put(&[1, 1 << 24, 4, 32]); // 1: int
        put(&[0, 2 << 24, 1]); // 2: pointer
        put(&[0, 4 << 24 | 1, 8, 12, 2, 64]); // 3: unnamed, b at 8
        put(&[5, 4 << 24 | 2, 32, 10, 1, 32, 0, 3, 128]); // 4: task, a at 4, unnamed at 16
        put(&[14, 14 << 24, 4, 0]); // 5: variable, hot
        put(&[18, 15 << 24 | 2, 64, 1, 0, 8, 5, 0x35000, 64]); // 6: section, hot at 0x35000
        let mut out = Vec::new();
        out.extend(MAGIC.to_ne_bytes());
        out.extend([1, 0]);
        for w in [24u32, 0, types.len() as u32, types.len() as u32, names.len() as u32] {
            out.extend(w.to_ne_bytes());
        }
        out.extend(types);
        out.extend(names);
        out
    }

    #[test]
    fn members_are_found_in_unnamed_parts_too() {
        let bytes = sample();
        let btf = Btf::new(&bytes).unwrap();
        assert_eq!(btf.offset("task", "a"), Some(4));
        assert_eq!(btf.offset("task", "b"), Some(24));
        assert_eq!(btf.offset("task", "c"), None);
        assert_eq!(btf.offset("tas", "a"), None);
        assert_eq!((btf.cpu_variable("hot"), btf.cpu_variable("task")), (Some(0x35000), None));
    }

    #[test]
    fn this_kernel_is_read_or_it_says_why() {
        match std::fs::read("/sys/kernel/btf/vmlinux") {
            Ok(bytes) => {
                let btf = Btf::new(&bytes).unwrap();
                let (tasks, mm) =
                    (btf.offset("task_struct", "tasks"), btf.offset("task_struct", "mm"));
                assert!(tasks.is_some() && mm.is_some() && tasks != mm);
                assert!(btf.offset("mm_struct", "pgd").is_some());
            }
            Err(e) => println!("skipped: /sys/kernel/btf/vmlinux: {e}"),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(at in 0usize..200, with: u8, cut in 0usize..210,
            random in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = sample();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            bytes.truncate(cut.max(2));
            for bytes in [bytes, random] {
                if let Some(btf) = Btf::new(&bytes) {
                    let _ = (btf.offset("task", "b"), btf.offset("task", "a"),
                        btf.offset("int", "x"));
                    let _ = btf.cpu_variable("hot");
                }
            }
        }
    }
}
