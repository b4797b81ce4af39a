//! A placement that no kernel made: which of the guest's virtual pages the fast node serves, all
//! others the slow one. What a bound uses for a program that has no phase at whose begin pages
//! could move.
//!
//! The file has a first line `FAST SLOW`, the nodes, and then the number of one page a line, in
//! hex.

use std::collections::HashSet;
use std::path::Path;

/// User addresses end here on x86-64.
const USER_END: u64 = 1 << 47;

/// The placement.
pub struct PluginPlacement {
    fast_pages: HashSet<u64>,
    fast: usize,
    slow: usize,
}

impl PluginPlacement {
    /// Read the file; `nodes` is how many the machine has.
    pub fn read(path: &Path, nodes: usize) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string());
        text.and_then(|text| Self::parse(&text, nodes))
            .map_err(|why| format!("placement {}: {why}", path.display()))
    }

    fn parse(text: &str, nodes: usize) -> Result<Self, String> {
        let mut lines = text.lines();
        let head = lines.next().and_then(|line| line.split_once(' '));
        let node = |word: &str| word.parse().ok().filter(|node| *node < nodes);
        let (fast, slow) = head
            .and_then(|(fast, slow)| Some((node(fast)?, node(slow)?)))
            .ok_or("its first line is not two nodes of the machine")?;
        let fast_pages = lines
            .map(|line| u64::from_str_radix(line, 16).map_err(|_| format!("no page: '{line}'")))
            .collect::<Result<_, _>>()?;
        Ok(Self { fast_pages, fast, slow })
    }

    /// The node that serves a virtual address; `None` for the kernel's, which lie where they lie.
    pub fn node_of(&self, address: u64) -> Option<usize> {
        let node = if self.fast_pages.contains(&(address >> 12)) { self.fast } else { self.slow };
        (address < USER_END).then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_programs_have_a_node_and_the_kernels_none() {
        let placed = PluginPlacement::parse("0 1\n7f000\n", 2).unwrap();
        assert_eq!(placed.node_of(0x7f00_0fff), Some(0));
        assert_eq!(placed.node_of(0x7f00_1000), Some(1));
        assert_eq!(placed.node_of(u64::MAX), None);
        for bad in ["", "0", "0 2\n", "x 1\n", "0 1\nzz\n"] {
            assert!(PluginPlacement::parse(bad, 2).is_err(), "{bad:?}");
        }
    }
}
