//! Which pages to sample where few stand for all: blocks spread evenly over the pages that have
//! page tables, others at each time.
//!
//! What lies together is mostly alike, so blocks at equal distances tell more of the sum than as
//! many at random would. As DAMON, which samples a page of each region, this costs the same
//! whatever the program has; unlike it, it needs nothing from the kernel but
//! `process_madvise(2)`.

use terrace_types::{Pid, Vpn, VpnRange};

/// Base pages in a block.
const BLOCK: u64 = 8;
/// Blocks. In the lab 64 cost 0.7 to 1.2 ms and 256 cost 1.2 to 2.6, the comparison included, and
/// more where mappings are many. 64 tell too little: on `groups` one check in three found nothing
/// on the worse tier where others found 40 to 160 ms a second (4.27 s in place of 4.09;
/// docs/adr/0363).
const BLOCKS: u64 = 128;
/// Of fewer pages than so many times those, all are sampled: that costs no more.
const FEW: u64 = 4;

/// Blocks of the pages in these parts, and the share of all pages that they have; `None` where
/// there are too few pages. `turn`: others at each time.
#[must_use]
pub fn spread(parts: &[(Pid, VpnRange)], turn: u64) -> Option<(Vec<(Pid, VpnRange)>, f64)> {
    let all: u64 = parts.iter().map(|(_, part)| part.len()).sum();
    if all < FEW * BLOCK * BLOCKS {
        return None;
    }
    let stride = all / BLOCKS;
    let mut next = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % stride;
    let (mut blocks, mut taken) = (Vec::new(), 0);
    for (pid, part) in parts {
        while next < part.len() {
            let first = Vpn((part.start.0 + next) / BLOCK * BLOCK);
            let block = VpnRange::new(first, Vpn(first.0 + BLOCK)).intersect(*part)?;
            taken += block.len();
            blocks.push((*pid, block));
            next += stride;
        }
        next -= part.len();
    }
    Some((blocks, taken as f64 / all as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(pid: i32, start: u64, end: u64) -> (Pid, VpnRange) {
        (Pid(pid), VpnRange::new(Vpn(start), Vpn(end)))
    }

    #[test]
    fn blocks_lie_in_parts_and_stand_for_all() {
        let parts =
            [part(1, 3, 9_001), part(1, 20_000, 60_003), part(2, 77, 78), part(3, 0, 4_096)];
        let all: u64 = parts.iter().map(|(_, part)| part.len()).sum();
        for turn in 0..50 {
            let (blocks, share) = spread(&parts, turn).unwrap();
            let fewest = BLOCKS as usize;
            assert!((fewest..=fewest + 1).contains(&blocks.len()), "{}", blocks.len());
            let inside = |(pid, block): &(Pid, VpnRange)| {
                let within = |(of, part): &&(Pid, VpnRange)| {
                    of == pid && part.start <= block.start && block.end <= part.end
                };
                parts.iter().any(|part| within(&part)) && !block.is_empty() && block.len() <= BLOCK
            };
            assert!(blocks.iter().all(inside), "{blocks:?}");
            let taken: u64 = blocks.iter().map(|(_, block)| block.len()).sum();
            assert!((share * all as f64 - taken as f64).abs() < 1e-6);
            // A sixteenth of the pages, which lie together.
            let hot = VpnRange::new(Vpn(30_000), Vpn(30_000 + all / 16));
            let found: u64 =
                blocks.iter().filter_map(|(_, b)| b.intersect(hot)).map(|b| b.len()).sum();
            let estimate = found as f64 / share / (all / 16) as f64;
            assert!((0.85..1.15).contains(&estimate), "{estimate}");
        }
        assert_ne!(spread(&parts, 1), spread(&parts, 2));
    }

    #[test]
    fn few_pages_are_not_worth_choosing_from() {
        let few = FEW * BLOCK * BLOCKS;
        assert_eq!(spread(&[part(1, 0, few - 1)], 1), None);
        assert!(spread(&[part(1, 0, few)], 1).is_some());
        assert_eq!(spread(&[], 0), None);
    }
}
