//! Memory of one kind or another, as words.

use std::path::Path;
use terrace_far::store::{BackingStore, Compressed, FileStore};
use terrace_far::FarMap;
use terrace_types::Bytes;

/// Where the data of a kernel is.
pub enum Memory {
    /// The process's own; a cgroup may make the kernel swap it.
    Plain(Vec<f64>),
    /// Far memory.
    Far(FarMap),
}

impl Memory {
    /// Memory of `words` words: `plain`, `far-file` or `far-compressed`.
    pub fn make(backing: &str, words: usize, dram: u64, folder: &Path) -> Result<Self, String> {
        let bytes = Bytes(words as u64 * 8);
        let far = |store: Box<dyn BackingStore>| {
            FarMap::new(bytes, Bytes(dram), store).map(Self::Far).map_err(|e| e.to_string())
        };
        match backing {
            "plain" => Ok(Self::Plain(vec![0.0; words])),
            "far-file" => {
                far(Box::new(FileStore::create(&[folder], bytes).map_err(|e| e.to_string())?))
            }
            "far-compressed" => far(Box::new(Compressed::new(bytes + bytes))),
            other => Err(format!("{other} is none of plain, far-file, far-compressed")),
        }
    }

    /// All of it.
    pub fn words(&mut self) -> &mut [f64] {
        match self {
            Self::Plain(words) => words,
            Self::Far(map) => {
                let len = map.len() / 8;
                // SAFETY: the map is `len` words, page-aligned, readable and writable as long as it
                // lives, and all bits are some number; `&mut self` excludes every other safe access
                // to it. Pages that the pager takes come back with what was in them before an
                // access ends.
                unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), len) }
            }
        }
    }

    /// What the pager did so far; nothing for plain memory.
    pub fn counts(&self) -> String {
        match self {
            Self::Plain(_) => String::new(),
            Self::Far(map) => format!("{:?}", map.statistics().counts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_hold_what_was_written() {
        let folder = std::env::temp_dir();
        for backing in ["plain", "far-file", "far-compressed"] {
            let mut memory = match Memory::make(backing, 1 << 20, 4 << 20, &folder) {
                Ok(memory) => memory,
                Err(why) => {
                    println!("skipped: {backing}: {why}");
                    continue;
                }
            };
            memory.words().iter_mut().enumerate().for_each(|(n, x)| *x = n as f64);
            assert!(memory.words().iter().enumerate().all(|(n, x)| *x == n as f64), "{backing}");
            assert_eq!(memory.words().len(), 1 << 20);
        }
        assert!(Memory::make("tape", 1, 1, &folder).is_err());
    }
}
